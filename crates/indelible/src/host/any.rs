//! One open map of any kind. A call costs one branch on the kind, which is predicted well: for one map it always goes one way.

use super::cursor::Cursor;
use super::handle::{Handle, Upkeep};
use super::{Host, MapStat};
use crate::engines::{self, Decision, Engine, KeyValue, Kind, Lookup, Place, ordered_engines};
use crate::pool::{Object, Signature};
use crate::{Error, Result};
use std::sync::Arc;

macro_rules! any {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        /// One open map, of whatever kind.
        #[derive(Clone)]
        pub(crate) enum AnyMap {
            $($variant(Arc<Host<engines::$folder::Index>>),)+
        }

        /// Does the work with the host or the cursor inside, whatever its kind.
        macro_rules! each {
            ($any:expr, $host:ident => $work:expr) => {
                match $any {
                    $(Self::$variant($host) => $work,)+
                }
            };
        }

        impl Handle for AnyMap {
            type Kind = Kind;

            fn format(place: &Place, options: &engines::AnyOptions) -> Result<()> {
                match options {
                    $(engines::AnyOptions::$variant(options) => {
                        <engines::$folder::Index as Engine>::format(place, options)
                    })+
                }
            }

            fn open(place: Place, kind: Kind) -> Result<Self> {
                Ok(match kind {
                    $(Kind::$variant => Self::$variant(Host::open(place)?),)+
                })
            }

            fn from_object(kind: Kind, object: Arc<Object>) -> Option<Self> {
                match kind {
                    $(Kind::$variant => object.downcast().ok().map(Self::$variant),)+
                }
            }

            fn object(&self) -> Arc<Object> {
                match self {
                    $(Self::$variant(host) => Arc::<Host<engines::$folder::Index>>::clone(host),)+
                }
            }

            fn upkeep(&self) -> &dyn Upkeep {
                each!(self, host => &**host)
            }

            fn kind(&self) -> Kind {
                match self {
                    $(Self::$variant(_) => Kind::$variant,)+
                }
            }
        }

        impl AnyMap {
            /// Whether both are handles to one open map.
            #[cfg(all(test, not(loom)))]
            pub(crate) fn is_same(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.object(), &other.object())
            }
        }

        /// A range in progress, from both ends, over a map of any kind.
        #[allow(
            clippy::large_enum_variant,
            reason = "to allocate the larger one would cost every range more than the room does"
        )]
        pub(crate) enum AnyCursor {
            $($variant(Cursor<engines::$folder::Index>),)+
        }

        impl AnyCursor {
            /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
            pub(crate) fn new(map: AnyMap, bounds: Option<(u64, u64)>) -> Self {
                match map {
                    $(AnyMap::$variant(host) => Self::$variant(Cursor::new(host, bounds)),)+
                }
            }

            /// The next record, if it has been read already.
            #[inline(always)]
            pub(crate) fn pop(&mut self) -> Option<KeyValue> {
                each!(self, cursor => cursor.pop())
            }

            /// The next record from the upper end, if it has been read already.
            #[inline(always)]
            pub(crate) fn pop_back(&mut self) -> Option<KeyValue> {
                each!(self, cursor => cursor.pop_back())
            }

            /// Reads on at the lower end, and returns the next record.
            pub(crate) fn read_front(&mut self) -> Result<Option<KeyValue>> {
                each!(self, cursor => cursor.read_front())
            }

            /// Reads on at the upper end, and returns the next record.
            pub(crate) fn read_back(&mut self) -> Result<Option<KeyValue>> {
                each!(self, cursor => cursor.read_back())
            }

            /// Ends the range because of damage.
            pub(crate) fn end(&mut self) {
                each!(self, cursor => cursor.end())
            }

            /// The next records, at most `most`; none only at the end.
            pub(crate) fn next_chunk(&mut self, most: usize) -> Result<&[KeyValue]> {
                each!(self, cursor => cursor.next_chunk(most))
            }
        }

        impl AnyMap {
            pub(crate) fn name(&self) -> String {
                each!(self, host => host.name())
            }

            /// What the catalog says of the map.
            pub(crate) fn signature(&self) -> Signature {
                each!(self, host => host.signature())
            }

            #[inline(always)]
            pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> {
                // The results of all kinds come back in two registers.
                match each!(self, host => host.try_get(key)) {
                    Lookup::Found(value) => Ok(Some(value)),
                    Lookup::Absent => Ok(None),
                    Lookup::Retry => self.get_with_retries(key),
                }
            }

            #[cold]
            fn get_with_retries(&self, key: u64) -> Result<Option<u64>> {
                each!(self, host => host.get(key))
            }

            #[inline]
            pub(crate) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
                each!(self, host => host.get_batch(keys, values))
            }

            /// [`Error::ReadOnly`] if the pool is open for reading only.
            pub(crate) fn expect_writable(&self) -> Result<()> {
                each!(self, host => host.expect_writable())
            }

            /// See [`Ordered::apply`](engines::Ordered::apply).
            ///
            /// Not generic, so that the engines are compiled once, in the library, and not again for every type of keys and every closure of
            /// a program.
            pub(crate) fn apply(
                &self,
                key: u64,
                decide: &mut dyn FnMut(Option<u64>) -> Decision,
            ) -> Result<Option<u64>, Box<Error>> {
                each!(self, host => host.apply(key, decide))
            }

            /// Puts `value` under `key`, whatever is there, and returns what was. The engines inline this decision and the next two, which are
            /// the most frequent ones.
            pub(crate) fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Box<Error>> {
                each!(self, host => host.apply(key, |_| Decision::Put(value)))
            }

            /// Puts `value` under `key` if the key is there, and returns what was.
            pub(crate) fn replace(&self, key: u64, value: u64) -> Result<Option<u64>, Box<Error>> {
                each!(self, host => host.apply(key, |now| match now {
                    Some(_) => Decision::Put(value),
                    None => Decision::Keep,
                }))
            }

            /// Removes `key`, and returns what was there.
            pub(crate) fn remove(&self, key: u64) -> Result<Option<u64>, Box<Error>> {
                each!(self, host => host.apply(key, |_| Decision::Remove))
            }

            /// The keys ascend; equal ones are written in their order.
            pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> {
                each!(self, host => host.insert_batch(records))
            }

            pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
                each!(self, host => host.bulk_load(records, fill))
            }

            pub(crate) fn len(&self) -> Result<u64> {
                each!(self, host => host.len())
            }

            pub(crate) fn warm_up(&self) -> Result<()> {
                each!(self, host => host.warm_up())
            }

            pub(crate) fn release_memory(&self) -> u64 {
                each!(self, host => host.release_memory())
            }

            pub(crate) fn compact(&self) -> Result<()> {
                each!(self, host => {
                    host.expect_writable()?;
                    host.compact()
                })
            }

            pub(crate) fn check(&self) -> Result<Vec<String>> {
                each!(self, host => host.check())
            }

            pub(crate) fn stat(&self) -> Result<MapStat> {
                each!(self, host => host.stat(self.kind()))
            }
        }
    };
}
ordered_engines!(any);
