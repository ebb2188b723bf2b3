//! What a typed map is, counts, statistics, checks, compaction.

use super::TypedMap;
use crate::Result;
use crate::encoding::{OrderedKey, StoredValue, from_bytes};
use crate::engines::StringKind;
use crate::front::{BytesOptions, StringStat};

/// What is done with the map as a whole.
impl<K: OrderedKey, V: StoredValue> TypedMap<K, V> {
    /// The name of the map: after [`Pool::rename_object`](crate::Pool::rename_object) the new one.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let map = indelible::Pool::in_memory()?.typed::<u128, u8>("sums")?;
    /// assert_eq!(map.name(), "sums");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.bytes.name()
    }

    /// The kind of index, and what was chosen when the map was created.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`](crate::Error::Damaged).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let map = indelible::Pool::in_memory()?.typed::<u128, u8>("sums")?;
    /// assert_eq!(map.options()?.kind(), map.kind());
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> Result<BytesOptions> {
        self.bytes.options()
    }

    /// Number of records.
    ///
    /// O(1) once the map is warm; the first call after a crash waits until all records have been counted. While others write: a number that counts
    /// every change that was complete before the call.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// map.insert(1, 1)?;
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.bytes.len()
    }

    /// Whether there are no records. Costs what [`first`](Self::first) costs, also right after a crash.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        self.bytes.is_empty()
    }

    /// The kind of index that the map is.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// assert_eq!(map.kind(), indelible::StringKind::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> StringKind {
        self.bytes.kind()
    }

    /// What the map is made of: records, bytes, and [facts](crate::Fact) of its kind of index. O(leaves).
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// map.insert(1, 1)?;
    /// assert_eq!(map.stat()?.records, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stat(&self) -> Result<StringStat> {
        self.bytes.stat()
    }

    /// Checks every invariant of the index, as [`BytesMap::check`](crate::BytesMap::check) does, and that the bytes of every record are a key and a value of the types of the map.
    /// Returns what is wrong, in words; empty means sound. O(bytes of all records).
    ///
    /// Run it while nobody writes: a concurrent write can look like a defect.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// map.insert(1, 1)?;
    /// assert!(map.check()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<Vec<String>> {
        let mut problems = self.bytes.check()?;
        if !problems.is_empty() {
            return Ok(problems);
        }
        for record in &self.bytes {
            let (key, value) = record?;
            // A key may be long.
            let start = &key[..key.len().min(32)];
            let found = (from_bytes::<K>(&key).is_some(), V::view(&value).is_some());
            let bad = match found {
                (true, true) => continue,
                (false, _) => "key",
                (true, false) => "value",
            };
            problems.push(format!(
                "the record under the bytes {start:?} ({} in all): no {bad} of the type of the map",
                key.len()
            ));
        }
        Ok(problems)
    }

    /// Merges leaves that have few records, and moves leaves and long values to the front of the file. O(n); other operations go on meanwhile.
    /// [`Pool::shrink`](crate::Pool::shrink) does this with every object and then cuts the file.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// map.compact()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.bytes.compact()
    }

    /// Waits until everything that a crash left to be rebuilt has been rebuilt. O(leaves) after a crash. Never needed for correctness.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, u8>("m")?;
    /// map.warm_up()?;
    /// assert!(map.stat()?.warm);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm_up(&self) -> Result<()> {
        self.bytes.warm_up()
    }
}
