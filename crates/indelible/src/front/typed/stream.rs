//! Long values in parts.

use super::TypedMap;
use crate::Result;
use crate::encoding::{AsKey, OrderedKey};
use crate::front::{ValueReader, ValueWriter};

/// What is done with long values in parts. Only a `Vec<u8>` has any bytes for its encoding: what is written in parts is put without being looked at, and might be
/// no value of another type.
impl<K: OrderedKey> TypedMap<K, Vec<u8>> {
    /// Begins to write a value of `length` bytes for `key` in parts: see [`BytesMap::value_writer`](crate::BytesMap::value_writer).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), Vec<u8>>("m")?;
    /// use std::io::Write;
    /// let mut writer = map.value_writer((7, "film"), 300_000)?;
    /// for _ in 0..3 {
    ///     writer.write_all(&[7; 100_000])?;
    /// }
    /// assert_eq!(map.value_len((7, "film"))?, None);
    /// assert!(!writer.commit()?, "the key was not there before");
    /// assert_eq!(map.value_len((7, "film"))?, Some(300_000));
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_writer(&self, key: impl AsKey<K>, length: u64) -> Result<ValueWriter> {
        key.with_encoded(|key| self.bytes.value_writer(key, length))
    }

    /// A reader of the value of `key` as it is now, if the key is there: see [`BytesMap::value_reader`](crate::BytesMap::value_reader).
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), Vec<u8>>("m")?;
    /// use std::io::{Read, Seek, SeekFrom};
    /// map.insert((7, "film"), vec![7; 100_000])?;
    /// let mut reader = map.value_reader((7, "film"))?.expect("the key is there");
    /// map.remove((7, "film"))?;
    /// let mut end = [0; 10];
    /// reader.seek(SeekFrom::End(-10))?;
    /// reader.read_exact(&mut end)?;
    /// assert_eq!(end, [7; 10]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_reader(&self, key: impl AsKey<K>) -> Result<Option<ValueReader>> {
        key.with_encoded(|key| self.bytes.value_reader(key))
    }
}
