//! Counts, statistics, checks, compaction.

use super::super::StringStat;
use super::BytesMap;
use crate::Result;
use crate::engines::StringKind;
use crate::host::Handle;

/// What is done with the map as a whole.
impl BytesMap {
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.index.len()
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.keys().next().transpose()?.is_none())
    }

    /// The kind of index that the map is.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::StringKind;
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert_eq!(map.kind(), StringKind::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> StringKind {
        self.index.kind()
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// let stat = map.stat()?;
    /// println!("{} records in {} bytes", stat.records, stat.file_bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stat(&self) -> Result<StringStat> {
        self.index.stat()
    }

    /// Checks every invariant of the index: order, prefixes, fingerprints, links, inner nodes, ownership of every block. Returns what is wrong, in words;
    /// empty means sound. O(n), of long values without reading them.
    ///
    /// Run it while nobody writes: a concurrent write can look like a defect. Values have no checksum, so a changed value is not found.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors), but not `Error::Damaged`: what is damaged is in what is returned.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert!(map.check()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<Vec<String>> {
        self.index.check()
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.compact()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.index.compact()
    }

    /// Waits until everything that a crash left to be rebuilt has been rebuilt. O(leaves) after a crash.
    ///
    /// Never needed for correctness: for measurements, and for programs that want their first operations as fast as the others.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.warm_up()?;
    /// assert!(map.stat()?.warm);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm_up(&self) -> Result<()> {
        self.index.warm_up()
    }
}
