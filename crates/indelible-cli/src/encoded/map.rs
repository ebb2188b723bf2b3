//! Maps of encodings and of byte strings, their keys and values as text.

use super::Encoding;
use crate::strings::{self, Form};
use anyhow::{Context, Result};
use indelible::{BytesMap, BytesOptions, BytesRange, Pool, TypedInfo};
use std::ops::Bound;

/// What the pool knows of the typed map of this name, if there is one.
pub fn find(pool: &Pool, name: &str) -> Option<TypedInfo> {
    pool.typed_maps().into_iter().find(|map| map.name == name)
}

/// The typed map of this name, if there is one, as a map of encodings, and its types.
pub fn open(pool: &Pool, name: &str) -> Result<Option<(TypedInfo, BytesMap)>> {
    match find(pool, name) {
        Some(_) => Ok(Some(pool.open_typed_as_bytes(name)?)),
        None => Ok(None),
    }
}

/// A typed map, or a map of byte strings, its keys and values as text.
pub struct EncodedMap {
    bytes: BytesMap,
    key: Encoding,
    value: Encoding,
    form: Form,
}

impl EncodedMap {
    /// The map of this name, if there is a typed one, or one of byte strings.
    pub fn open(pool: &Pool, name: &str, form: Form) -> Result<Option<Self>> {
        let found = match strings::open(pool, name)? {
            Some(bytes) => Some((bytes, Encoding::Bytes, Encoding::Bytes)),
            None => open(pool, name)?.map(|(info, bytes)| {
                let [key, value] = [&info.key, &info.value].map(|name| Encoding::named(name));
                (bytes, key, value)
            }),
        };
        Ok(found.map(|(bytes, key, value)| Self {
            bytes,
            key,
            value,
            form,
        }))
    }

    /// The map of this name, created if it is not there: a typed map if there are names of types or if there is one, and otherwise one of byte strings.
    pub fn create(
        pool: &Pool,
        name: &str,
        types: Option<[&str; 2]>,
        options: Option<&BytesOptions>,
    ) -> Result<Self> {
        let types = types.map(|names| names.map(str::to_owned));
        let known = || find(pool, name).map(|info| [info.key, info.value]);
        let (bytes, [key, value]) = match (types.or_else(known), options) {
            (Some([key, value]), options) => {
                let any = BytesOptions::default().accept_any(true);
                let bytes =
                    pool.typed_as_bytes_with(name, &key, &value, options.unwrap_or(&any))?;
                (bytes, [key, value].map(|name| Encoding::named(&name)))
            }
            (None, Some(options)) => (
                pool.bytes_with(name, options)?,
                [Encoding::Bytes, Encoding::Bytes],
            ),
            (None, None) => (pool.open_bytes(name)?, [Encoding::Bytes, Encoding::Bytes]),
        };
        Ok(Self {
            bytes,
            key,
            value,
            form: Form { hex: false },
        })
    }

    /// A record from the cells of a row of a table: those of the key, which has one, or one for each of its fields, and that of the value. One that is
    /// too long is an error here, where the caller knows its place, and before any is inserted.
    pub fn record(&self, key: &[&[u8]], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
        let key = self.key.key_of_cells(key).context("the key")?;
        let value = self.value.value_of_cell(value).context("the value")?;
        self.bytes.expect_lengths(&key, &value)?;
        Ok((key, value))
    }

    /// Adds records in any order. Returns how many keys came again.
    pub fn load(&self, records: Vec<(Vec<u8>, Vec<u8>)>, fill: f64) -> Result<usize> {
        strings::load(&self.bytes, records, fill)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        self.shown(self.bytes.get(self.key.key(key, self.form)?)?)
    }

    /// Sets a value, and returns the one before.
    pub fn put(&self, key: &str, value: &str) -> Result<Option<String>> {
        let key = self.key.key(key, self.form)?;
        self.shown(
            self.bytes
                .replace(key, self.value.value(value, self.form)?)?,
        )
    }

    /// Whether the keys have no values.
    pub fn is_set(&self) -> bool {
        matches!(self.value, Encoding::Unit)
    }

    /// Whether keys or values have text or bytes, which can be typed and printed as hexadecimal digits.
    pub fn has_bytes(&self) -> bool {
        self.key.has_bytes() || self.value.has_bytes()
    }

    /// Whether values are strings or byte strings, which may be empty.
    pub fn has_empty_values(&self) -> bool {
        matches!(self.value, Encoding::Text | Encoding::Bytes)
    }

    /// Removes a key, and returns its value.
    pub fn del(&self, key: &str) -> Result<Option<String>> {
        self.shown(self.bytes.take(self.key.key(key, self.form)?)?)
    }

    /// The records whose keys begin so.
    pub fn prefix(&self, prefix: &str) -> Result<BytesRange> {
        Ok(self.bytes.prefix(self.key.prefix(prefix, self.form)?))
    }

    /// The records from one key to another, both included.
    pub fn range(&self, from: Option<&str>, to: Option<&str>) -> Result<BytesRange> {
        Ok(self.bytes.range((self.bound(from)?, self.bound(to)?)))
    }

    fn bound(&self, key: Option<&str>) -> Result<Bound<Vec<u8>>> {
        let key = key.map(|text| self.key.key(text, self.form)).transpose()?;
        Ok(key.map_or(Bound::Unbounded, Bound::Included))
    }

    /// Removes the records from one key to another, both included, and returns how many there were.
    pub fn remove_range(&self, from: Option<&str>, to: Option<&str>) -> Result<u64> {
        let bounds = (self.bound(from)?, self.bound(to)?);
        Ok(self.bytes.remove_range(bounds)?)
    }

    /// Removes the records whose keys begin so, and returns how many there were.
    pub fn remove_prefix(&self, prefix: &str) -> Result<u64> {
        let prefix = self.key.prefix(prefix, self.form)?;
        Ok(self.bytes.remove_prefix(prefix)?)
    }

    /// A record as text.
    pub fn show(&self, key: &[u8], value: &[u8]) -> Result<[String; 2]> {
        let shown = self.key.show_key(key, self.form);
        let key = shown.context("the map has a record whose key is none of its type")?;
        Ok([key, self.show_value(value)?])
    }

    fn show_value(&self, value: &[u8]) -> Result<String> {
        let shown = self.value.show_value(value, self.form);
        shown.context("the map has a record whose value is none of its type")
    }

    fn shown(&self, value: Option<Vec<u8>>) -> Result<Option<String>> {
        value.map(|value| self.show_value(&value)).transpose()
    }
}
