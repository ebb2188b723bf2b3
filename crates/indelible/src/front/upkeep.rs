//! What a map is, counts, statistics, checks.

use super::catalog::options_of_open;
use super::{Key, Map, MapOptions, MapStat, Value};
use crate::Result;
use crate::engines::Kind;
use crate::host::Handle;

/// What is done with the map as a whole.
impl<K: Key, V: Value> Map<K, V> {
    /// The name of the map: after [`Pool::rename_object`](crate::Pool::rename_object) the new one.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// let map = pool.map::<u64, u64>("new")?;
    /// pool.rename_map("new", "current")?;
    /// assert_eq!(map.name(), "current");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.index().name()
    }

    /// The kind of index that the map is.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Kind, Pool};
    /// let map = Pool::in_memory()?.map_with::<u64, u64>("m", Kind::Apex)?;
    /// assert_eq!(map.kind(), Kind::Apex);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> Kind {
        Handle::kind(self.index())
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
    /// use indelible::{LbTreeOptions, Pool};
    /// let options = LbTreeOptions::default().leaf_bytes(512);
    /// let map = Pool::in_memory()?.map_with::<u64, u64>("m", options)?;
    /// assert_eq!(map.options()?.get("leaf").as_deref(), Some("512"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> Result<MapOptions> {
        options_of_open(&self.index().signature())
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.index().len()
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// What the map is made of: records, bytes, and [facts](crate::Fact) of its kind of index. O(nodes).
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// let stat = map.stat()?;
    /// println!("{} records in {} bytes", stat.records, stat.file_bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stat(&self) -> Result<MapStat> {
        self.index().stat()
    }

    /// Checks every invariant of the index: order, fingerprints, links, inner nodes, ownership of every block. Returns what is wrong, in words; empty
    /// means sound. O(n).
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// assert!(map.check()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<Vec<String>> {
        self.index().check()
    }

    /// Merges nodes that have few records, and moves nodes to the front of the file. O(n); other operations go on meanwhile.
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.compact()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.index().compact()
    }

    /// Gives DRAM back that is rebuilt when it is needed, and returns how many bytes; for when memory is short. Operations go on meanwhile, and rebuild
    /// what they touch. O(nodes). Nothing in the file is changed.
    ///
    /// Not every kind of index has such DRAM; see the documentation of each.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// let bytes = map.release_memory();
    /// println!("{bytes} bytes are free now");
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_memory(&self) -> u64 {
        self.index().release_memory()
    }

    /// Waits until everything that a crash left to be rebuilt has been rebuilt. O(n) after a crash, otherwise O(nodes).
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.warm_up()?;
    /// assert!(map.stat()?.warm);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm_up(&self) -> Result<()> {
        self.index().warm_up()
    }
}
