//! Maps whose types are known only at run time.

use crate::encoded::{Encoding, within};
use crate::text::Text;
use crate::unfinished::{SETS_THEM_AGAIN, add_in_steps};
use anyhow::{Context, Result, bail};
use indelible::{BytesMap, Error, Key, Map, MapOptions, MapStat, Pool, Type, Value};
use std::ops::Bound;

/// How the keys or the values of one type are read and written as text, by way of the words that a map stores.
#[derive(Clone, Copy)]
struct Codec {
    parse: fn(&str) -> Result<u64>,
    /// `None` for a word that stands for nothing of the type.
    show: fn(u64) -> Option<String>,
}

impl Codec {
    const fn of_keys<T: Key + Text>() -> Self {
        Self {
            parse: |text| Ok(T::parse(text)?.encode()?),
            show: |word| T::decode(word).map(|key| key.show()),
        }
    }

    const fn of_values<T: Value + Text>() -> Self {
        Self {
            parse: |text| Ok(T::parse(text)?.to_word()),
            show: |word| T::from_word(word).map(|value| value.show()),
        }
    }
}

/// A type of the library that can be typed and printed.
struct TextType {
    /// `None` for a type of values alone.
    keys: Option<Codec>,
    values: Codec,
}

impl TextType {
    fn new(of: Type) -> Result<Self> {
        const fn both<T: Key + Value + Text>() -> TextType {
            TextType {
                keys: Some(Codec::of_keys::<T>()),
                values: Codec::of_values::<T>(),
            }
        }
        Ok(match of {
            Type::U64 => both::<u64>(),
            Type::I64 => both::<i64>(),
            Type::U32 => both::<u32>(),
            Type::I32 => both::<i32>(),
            Type::U16 => both::<u16>(),
            Type::I16 => both::<i16>(),
            Type::U8 => both::<u8>(),
            Type::I8 => both::<i8>(),
            Type::F64 => both::<f64>(),
            Type::F32 => both::<f32>(),
            Type::Bool => both::<bool>(),
            Type::Char => both::<char>(),
            Type::Bytes1 => both::<[u8; 1]>(),
            Type::Bytes2 => both::<[u8; 2]>(),
            Type::Bytes3 => both::<[u8; 3]>(),
            Type::Bytes4 => both::<[u8; 4]>(),
            Type::Bytes5 => both::<[u8; 5]>(),
            Type::Bytes6 => both::<[u8; 6]>(),
            Type::Bytes7 => both::<[u8; 7]>(),
            Type::Bytes8 => both::<[u8; 8]>(),
            Type::Unit => Self {
                keys: None,
                values: Codec::of_values::<()>(),
            },
            other => bail!("this command line does not know the type {other}"),
        })
    }
}

/// A map, its keys and values as text.
pub struct TextMap {
    words: Map<u64, u64>,
    keys: Codec,
    values: Codec,
    is_set: bool,
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

impl TextMap {
    /// Opens a map with the types that the catalog records.
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        let (info, words) = pool.open_map_of_words(name)?;
        Self::new(words, info.key, info.value)
    }

    /// Opens or creates a map with these types.
    pub fn create(
        pool: &Pool,
        name: &str,
        key: Type,
        value: Type,
        options: MapOptions,
    ) -> Result<Self> {
        let words = pool.map_of_words(name, key, value, options)?;
        Self::new(words, key, value)
    }

    fn new(words: Map<u64, u64>, key: Type, value: Type) -> Result<Self> {
        let keys = TextType::new(key)?.keys;
        Ok(Self {
            words,
            keys: keys.with_context(|| format!("{key} cannot be a key"))?,
            values: TextType::new(value)?.values,
            is_set: value == Type::Unit,
        })
    }

    /// Whether the keys have no values.
    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        self.shown(self.words.get(self.key(key)?)?)
    }

    /// Sets a value, and returns the one before.
    pub fn put(&self, key: &str, value: &str) -> Result<Option<String>> {
        let (key, value) = (self.key(key)?, (self.values.parse)(value)?);
        self.shown(self.words.insert(key, value)?)
    }

    /// Removes a key, and returns its value.
    pub fn del(&self, key: &str) -> Result<Option<String>> {
        self.shown(self.words.remove(self.key(key)?)?)
    }

    fn key(&self, text: &str) -> Result<u64> {
        (self.keys.parse)(text)
    }

    fn shown(&self, value: Option<u64>) -> Result<Option<String>> {
        value
            .map(|word| show(self.values, "value", word))
            .transpose()
    }

    fn bound(&self, key: Option<&str>) -> Result<Bound<u64>> {
        let key = key.map(|text| self.key(text)).transpose()?;
        Ok(key.map_or(Bound::Unbounded, Bound::Included))
    }

    /// Removes the records from one key to another, both included, and returns how many there were.
    pub fn remove_range(&self, from: Option<&str>, to: Option<&str>) -> Result<u64> {
        let bounds = (self.bound(from)?, self.bound(to)?);
        Ok(self.words.remove_range(bounds)?)
    }

    /// Calls `visit` with records in order until it returns `false`.
    pub fn scan(
        &self,
        scan: &Scan<'_>,
        visit: &mut dyn FnMut(String, String) -> bool,
    ) -> Result<()> {
        let bounds = (self.bound(scan.from)?, self.bound(scan.to)?);
        let mut range = self.words.range(bounds)?;
        while let Some(record) = if scan.reverse {
            range.next_back()
        } else {
            range.next()
        } {
            let (key, value) = record?;
            let key = show(self.keys, "key", key)?;
            if !visit(key, show(self.values, "value", value)?) {
                break;
            }
        }
        Ok(())
    }

    /// Adds all rows: in bulk if the map is empty. Returns how many keys were there more than once.
    pub fn load(
        &self,
        rows: &mut dyn Iterator<Item = Result<Row>>,
        columns: &Columns,
        options: &LoadOptions<'_>,
    ) -> Result<usize> {
        let mut records = Vec::new();
        for row in rows {
            let row = row?;
            let place = |column: &str| format!("line {}, {column}", row.line);
            let key = self.key(&row.key).with_context(|| place(&columns.key))?;
            let value = (self.values.parse)(&row.value).with_context(|| place(&columns.value))?;
            records.push((key, value));
        }
        load_records(&self.words, records, options)
    }

    /// See [`Map::stat`].
    pub fn stat(&self) -> Result<MapStat> {
        Ok(self.words.stat()?)
    }

    /// See [`Map::check`].
    pub fn check(&self) -> Result<Vec<String>> {
        Ok(self.words.check()?)
    }
}

fn show(codec: Codec, role: &str, word: u64) -> Result<String> {
    let damaged = || Error::Damaged(format!("{word:#x} is no {role} of the map's type"));
    Ok((codec.show)(word).ok_or_else(damaged)?)
}

/// Adds records of encoded words: in bulk if the map is empty. Of records with the same key the last one counts.
pub fn load_records(
    map: &Map<u64, u64>,
    mut records: Vec<(u64, u64)>,
    options: &LoadOptions<'_>,
) -> Result<usize> {
    let all = records.len();
    // Stable, then from the back: of equal keys the last one comes first and stays.
    records.sort_by_key(|record| record.0);
    records.reverse();
    records.dedup_by_key(|record| record.0);
    records.reverse();
    if map.is_empty()? {
        map.bulk_load(&records, options.fill)?;
        (options.written)(records.len() as u64);
    } else {
        let insert = || {
            for chunk in records.chunks(4096) {
                map.insert_batch(chunk)?;
                (options.written)(chunk.len() as u64);
            }
            Ok(())
        };
        let (name, count) = (map.name(), records.len());
        add_in_steps(&name, count, SETS_THEM_AGAIN, || map.len(), insert)?;
    }
    Ok(all - records.len())
}

/// A type by its name on the command line: as Rust spells it, or a name that needs no quotes in a shell, `bytes4` for `[u8; 4]` and
/// `unit` for `()`.
pub fn type_by_name(name: &str) -> Result<Type, String> {
    let known = |of: &&Type| of.to_string() == name || name_for_shells(**of) == name;
    let found = Type::all().iter().find(known);
    found
        .copied()
        .ok_or_else(|| format!("known types: {}", type_names()))
}

/// A type as the command line names it: one of at most 8 bytes, which a map of words has, or another one, which only a typed map has.
#[derive(Clone)]
pub struct TypeName {
    /// As [`TypedInfo`](indelible::TypedInfo) spells it.
    pub name: String,
    /// If it has at most 8 bytes.
    pub word: Option<Type>,
}

impl TypeName {
    /// A type of keys.
    pub fn of_key(name: &str) -> Result<Self, String> {
        Self::new(name, key_type_by_name, Encoding::can_be_key, KEY)
    }

    /// A type of values.
    pub fn of_value(name: &str) -> Result<Self, String> {
        Self::new(name, type_by_name, Encoding::can_be_value, VALUE)
    }

    fn new(
        name: &str,
        word_by_name: fn(&str) -> Result<Type, String>,
        is_right: fn(&Encoding) -> bool,
        (role, most): (&str, u128),
    ) -> Result<Self, String> {
        if name.len() > MOST_NAME_BYTES {
            return Err("no type that a catalog has room for has such a long name".into());
        }
        let name = as_in_rust(name);
        let error = match word_by_name(&name) {
            Ok(of) => {
                let name = of.to_string();
                return Ok(Self {
                    name,
                    word: Some(of),
                });
            }
            Err(error) => error,
        };
        // No record could have such a type. The library says so of every type, but not of an array whose length is none in this program.
        let length = within(&name, "[u8; ", "]").and_then(|length| length.parse::<u128>().ok());
        if length.is_some_and(|length| length > most) {
            return Err(format!("a {role} has at most {most} bytes"));
        }
        if is_right(&Encoding::named(&name)) {
            return Ok(Self { name, word: None });
        }
        Err(match type_by_name(&name) {
            Ok(_) => error,
            Err(_) => format!("{error}; in typed maps also {WIDE_TYPES}"),
        })
    }
}

/// Bytes of the name of a type, at most. The 22 bytes of a catalog entry hold no type whose name is half as long, and longer ones could be nested so deeply
/// that they are not read without a stack overflow.
const MOST_NAME_BYTES: usize = 512;

/// What a typed map has records of, and how many bytes of it at most.
const KEY: (&str, u128) = ("key", BytesMap::MOST_KEY_BYTES as u128);
const VALUE: (&str, u128) = ("value", BytesMap::MOST_VALUE_BYTES as u128);

/// The types that have more than 8 bytes, as help and errors list them.
pub const WIDE_TYPES: &str = "u128, i128, bytesN, String (or string, str, text), Vec<u8> (or bytes), and as keys Option<T> and tuples such as '(u32, String)'";

/// The name of a type as Rust spells it, whose words may be those that other programs and shells know: `(u32, String)` for `(u32, text)`.
fn as_in_rust(name: &str) -> String {
    let is_end = |c: char| !c.is_ascii_alphanumeric();
    let spelled = name.split_inclusive(is_end).map(|part| {
        let word = part.trim_end_matches(is_end);
        let spelled = match word {
            "string" | "str" | "text" => "String".into(),
            "bytes" => "Vec<u8>".into(),
            _ => {
                let length = word.strip_prefix("bytes");
                match length.and_then(|length| length.parse::<u128>().ok()) {
                    Some(length) => format!("[u8; {length}]"),
                    None => word.to_owned(),
                }
            }
        };
        spelled + &part[word.len()..]
    });
    spelled.collect()
}

/// [`type_by_name`] for keys.
pub fn key_type_by_name(name: &str) -> Result<Type, String> {
    let of = type_by_name(name)?;
    if of.can_be_key() {
        return Ok(of);
    }
    Err(format!("{of} cannot be a key"))
}

/// The names of all types, as help and errors list them.
pub fn type_names() -> String {
    let names = Type::all().iter().map(|&of| match of.can_be_key() {
        true => name_for_shells(of),
        false => format!("{} (values only)", name_for_shells(of)),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn name_for_shells(of: Type) -> String {
    let name = of.to_string();
    if name == "()" {
        return "unit".into();
    }
    match name.strip_prefix("[u8; ") {
        Some(rest) => format!("bytes{}", rest.trim_end_matches(']')),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_codecs_and_names() {
        for &of in Type::all() {
            let codecs = TextType::new(of).unwrap();
            assert_eq!(codecs.keys.is_some(), of.can_be_key(), "{of}");
            assert_eq!(type_by_name(&of.to_string()), Ok(of));
            assert_eq!(type_by_name(&name_for_shells(of)), Ok(of));
            assert_eq!(key_type_by_name(&of.to_string()).is_ok(), of.can_be_key());
        }
        assert_eq!(type_by_name("bytes8"), Ok(Type::Bytes8));
        assert_eq!(type_by_name("unit"), Ok(Type::Unit));
        assert!(type_by_name("u128").unwrap_err().contains("bytes7"));
    }
}
