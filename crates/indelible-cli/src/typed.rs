//! Maps whose types are known only at run time.

use crate::text::Text;
use anyhow::{Context, Result, bail};
use indelible::{Key, Map, MapInfo, MapOptions, MapStat, Pool, Type, Value};

/// A map, its keys and values as text.
pub trait TextMap {
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Option<String>>;
    /// Sets a value, and returns the one before.
    fn put(&self, key: &str, value: &str) -> Result<Option<String>>;
    /// Removes a key, and returns its value.
    fn del(&self, key: &str) -> Result<Option<String>>;
    /// Calls `visit` with records in order until it returns `false`.
    fn scan(&self, scan: &Scan<'_>, visit: &mut dyn FnMut(String, String) -> bool) -> Result<()>;
    /// Adds all rows: in bulk if the map is empty. Returns how many keys were there more than once.
    fn load(
        &self,
        rows: &mut dyn Iterator<Item = Result<Row>>,
        columns: &Columns,
        options: &LoadOptions<'_>,
    ) -> Result<usize>;
    /// See [`Map::stat`].
    fn stat(&self) -> Result<MapStat>;
    /// See [`Map::check`].
    fn check(&self) -> Result<Vec<String>>;
}

/// Which records, in which order.
pub struct Scan<'a> {
    /// The first key.
    pub from: Option<&'a str>,
    /// The last key.
    pub to: Option<&'a str>,
    /// Descending.
    pub reverse: bool,
}

/// A row of a file of text.
pub struct Row {
    /// The line that it begins on, from 1.
    pub line: u64,
    /// The cell of the key.
    pub key: String,
    /// The cell of the value.
    pub value: String,
}

/// The columns of a file of text, as messages name them.
pub struct Columns {
    /// Where the keys are.
    pub key: String,
    /// Where the values are.
    pub value: String,
}

/// How to load.
pub struct LoadOptions<'a> {
    /// Share of each leaf to fill.
    pub fill: f64,
    /// Called with the number of records written.
    pub written: &'a dyn Fn(u64),
}

impl<K: Key + Text, V: Value + Text> TextMap for Map<K, V> {
    fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(Map::get(self, K::parse(key)?)?.map(|value| value.show()))
    }

    fn put(&self, key: &str, value: &str) -> Result<Option<String>> {
        Ok(self
            .insert(K::parse(key)?, V::parse(value)?)?
            .map(|value| value.show()))
    }

    fn del(&self, key: &str) -> Result<Option<String>> {
        Ok(self.remove(K::parse(key)?)?.map(|value| value.show()))
    }

    fn scan(&self, scan: &Scan<'_>, visit: &mut dyn FnMut(String, String) -> bool) -> Result<()> {
        use std::ops::Bound;
        let bound = |text: Option<&str>| -> Result<Bound<K>> {
            Ok(text
                .map(K::parse)
                .transpose()?
                .map_or(Bound::Unbounded, Bound::Included))
        };
        let mut range = self.range((bound(scan.from)?, bound(scan.to)?))?;
        while let Some(record) = if scan.reverse {
            range.next_back()
        } else {
            range.next()
        } {
            let (key, value) = record?;
            if !visit(key.show(), value.show()) {
                break;
            }
        }
        Ok(())
    }

    fn load(
        &self,
        rows: &mut dyn Iterator<Item = Result<Row>>,
        columns: &Columns,
        options: &LoadOptions<'_>,
    ) -> Result<usize> {
        let mut records = Vec::new();
        for row in rows {
            let row = row?;
            let place = |column: &str| format!("line {}, {column}", row.line);
            let key = || -> Result<_> {
                let key = K::parse(&row.key)?;
                Ok((key.encode()?, key))
            };
            let (code, key) = key().with_context(|| place(&columns.key))?;
            let value = V::parse(&row.value).with_context(|| place(&columns.value))?;
            records.push((code, (key, value)));
        }
        let repeated = load_records(self, records, options)?;
        Ok(repeated)
    }

    fn stat(&self) -> Result<MapStat> {
        Ok(Map::stat(self)?)
    }

    fn check(&self) -> Result<Vec<String>> {
        Ok(Map::check(self)?)
    }
}

/// Adds records, each with its encoded key: in bulk if the map is empty. Of records with the same key the last one counts.
pub fn load_records<K: Key, V: Value>(
    map: &Map<K, V>,
    mut records: Vec<(u64, (K, V))>,
    options: &LoadOptions<'_>,
) -> Result<usize> {
    let all = records.len();
    // Stable, then from the back: of equal keys the last one comes first and stays.
    records.sort_by_key(|record| record.0);
    records.reverse();
    records.dedup_by_key(|record| record.0);
    records.reverse();
    let records: Vec<(K, V)> = records.into_iter().map(|(_, record)| record).collect();
    if map.is_empty()? {
        map.bulk_load(&records, options.fill)?;
        (options.written)(records.len() as u64);
    } else {
        for chunk in records.chunks(4096) {
            map.insert_batch(chunk)?;
            (options.written)(chunk.len() as u64);
        }
    }
    Ok(all - records.len())
}

/// What the catalog says of a map.
pub fn info(pool: &Pool, name: &str) -> Result<MapInfo> {
    match pool.maps().into_iter().find(|map| map.name == name) {
        Some(map) => Ok(map),
        None => bail!(indelible::Error::NoSuchMap(name.into())),
    }
}

/// Opens a map with the types that the catalog records.
pub fn open(pool: &Pool, name: &str) -> Result<Box<dyn TextMap>> {
    let info = info(pool, name)?;
    create(
        pool,
        name,
        info.key,
        info.value,
        MapOptions::default().accept_any(true),
    )
}

/// Opens or creates a map with these types.
pub fn create(
    pool: &Pool,
    name: &str,
    key: Type,
    value: Type,
    options: MapOptions,
) -> Result<Box<dyn TextMap>> {
    match key {
        Type::U64 => with_key::<u64>(pool, name, value, options),
        Type::I64 => with_key::<i64>(pool, name, value, options),
        Type::U32 => with_key::<u32>(pool, name, value, options),
        Type::I32 => with_key::<i32>(pool, name, value, options),
        Type::F64 => with_key::<f64>(pool, name, value, options),
        Type::F32 => with_key::<f32>(pool, name, value, options),
        Type::Bytes8 => with_key::<[u8; 8]>(pool, name, value, options),
        Type::Unit => bail!("() cannot be a key"),
        other => bail!("this command line does not know keys of type {other}"),
    }
}

fn with_key<K: Key + Text>(
    pool: &Pool,
    name: &str,
    value: Type,
    options: MapOptions,
) -> Result<Box<dyn TextMap>> {
    Ok(match value {
        Type::U64 => Box::new(pool.map_with::<K, u64>(name, options)?),
        Type::I64 => Box::new(pool.map_with::<K, i64>(name, options)?),
        Type::U32 => Box::new(pool.map_with::<K, u32>(name, options)?),
        Type::I32 => Box::new(pool.map_with::<K, i32>(name, options)?),
        Type::F64 => Box::new(pool.map_with::<K, f64>(name, options)?),
        Type::F32 => Box::new(pool.map_with::<K, f32>(name, options)?),
        Type::Bytes8 => Box::new(pool.map_with::<K, [u8; 8]>(name, options)?),
        Type::Unit => Box::new(pool.map_with::<K, ()>(name, options)?),
        other => bail!("this command line does not know values of type {other}"),
    })
}

/// A type by its name on the command line.
pub fn type_by_name(name: &str) -> Result<Type, String> {
    Ok(match name {
        "u64" => Type::U64,
        "i64" => Type::I64,
        "u32" => Type::U32,
        "i32" => Type::I32,
        "f64" => Type::F64,
        "f32" => Type::F32,
        "bytes8" => Type::Bytes8,
        "unit" => Type::Unit,
        _ => return Err("known types: u64 i64 u32 i32 f64 f32 bytes8, and unit for values".into()),
    })
}
