//! One open map of byte strings of any kind. A call costs one branch on the kind, as in [`any`](super::any).

use super::handle::{Handle, Upkeep};
use super::{Host, StringStat};
use crate::Result;
use crate::engines::{
    self, AnyStringOptions, Current, Engine, LastPart, LongValue, Place, ReadableValue,
    StringBuffer, StringDecision, StringKind, StringRange, StringRecord, Strings, string_engines,
};
use crate::pool::{Object, Signature};
use std::sync::Arc;

macro_rules! any_strings {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        /// One open map of byte strings, of whatever kind.
        #[derive(Clone)]
        pub(crate) enum AnyStrings {
            $($variant(Arc<Host<engines::$folder::Index>>),)+
        }

        /// Does the work with the host inside, whatever its kind.
        macro_rules! each {
            ($any:expr, $host:ident => $work:expr) => {
                match $any {
                    $(Self::$variant($host) => $work,)+
                }
            };
        }

        impl Handle for AnyStrings {
            type Kind = StringKind;

            fn format(place: &Place, options: &AnyStringOptions) -> Result<()> {
                match options {
                    $(AnyStringOptions::$variant(options) => {
                        <engines::$folder::Index as Engine>::format(place, options)
                    })+
                }
            }

            fn open(place: Place, kind: StringKind) -> Result<Self> {
                Ok(match kind {
                    $(StringKind::$variant => Self::$variant(Host::open(place)?),)+
                })
            }

            fn from_object(kind: StringKind, object: Arc<Object>) -> Option<Self> {
                match kind {
                    $(StringKind::$variant => object.downcast().ok().map(Self::$variant),)+
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

            fn kind(&self) -> StringKind {
                match self {
                    $(Self::$variant(_) => StringKind::$variant,)+
                }
            }
        }

        impl AnyStrings {
            /// Bytes in the longest key, and in the longest value, which are the same for all kinds: programs know them as constants.
            pub(crate) const MOST_BYTES: [u64; 2] = {
                let of_kinds = [$(<engines::$folder::Index as Strings>::MOST_BYTES,)+];
                let [most_key, most_value] = of_kinds[0];
                let mut kind = 1;
                while kind < of_kinds.len() {
                    assert!(of_kinds[kind][0] == most_key && of_kinds[kind][1] == most_value);
                    kind += 1;
                }
                of_kinds[0]
            };

            pub(crate) fn name(&self) -> String {
                each!(self, host => host.name())
            }

            /// What the catalog says of the map.
            pub(crate) fn signature(&self) -> Signature {
                each!(self, host => host.signature())
            }

            /// See [`Strings::get_with`](crate::engines::Strings::get_with).
            #[inline]
            pub(crate) fn get_with(&self, key: &[u8], use_value: &mut dyn FnMut(&[u8])) -> Result<bool> {
                each!(self, host => host.get_string(key, use_value))
            }

            /// See [`Strings::get_many`](crate::engines::Strings::get_many).
            pub(crate) fn get_many(
                &self,
                keys: &[&[u8]],
                use_value: &mut dyn FnMut(usize, &[u8]),
            ) -> Result<()> {
                each!(self, host => host.get_strings(keys, use_value))
            }

            pub(crate) fn value_len(&self, key: &[u8]) -> Result<Option<u64>> {
                each!(self, host => host.string_len(key))
            }

            /// An error if the map takes no such key, or no value of so many bytes.
            pub(crate) fn expect_lengths(&self, key: &[u8], value: u64) -> Result<()> {
                each!(self, host => host.expect_lengths(key, value))
            }

            /// See [`Strings::apply`](crate::engines::Strings::apply).
            #[inline]
            pub(crate) fn apply<'v>(
                &self,
                key: &[u8],
                likely: Option<&'v [u8]>,
                decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
            ) -> Result<bool> {
                each!(self, host => host.apply_string(key, likely, decide))
            }

            /// Inserts records whose keys ascend strictly. After an error some of them are inserted.
            pub(crate) fn insert_batch(&self, records: &[StringRecord<'_>]) -> Result<()> {
                each!(self, host => host.insert_strings(records))
            }

            /// See [`Strings::new_value`](crate::engines::Strings::new_value).
            pub(crate) fn new_value(&self, key: &[u8], bytes: u64) -> Result<Option<LongValue>> {
                each!(self, host => host.new_value(key, bytes))
            }

            /// See [`Strings::write_part`](crate::engines::Strings::write_part).
            pub(crate) fn write_part(&self, value: &LongValue, at: u64, part: &[u8]) -> Result<()> {
                each!(self, host => host.write_part(value, at, part))
            }

            /// See [`Strings::put_value`](crate::engines::Strings::put_value).
            pub(crate) fn put_value(
                &self,
                key: &[u8],
                value: &mut Option<LongValue>,
                last: LastPart<'_>,
            ) -> Result<bool> {
                each!(self, host => host.put_value(key, value, last))
            }

            /// See [`Strings::keep_value`](crate::engines::Strings::keep_value).
            pub(crate) fn keep_value(&self, key: &[u8]) -> Result<Option<ReadableValue>> {
                each!(self, host => host.keep_value(key))
            }

            /// See [`Strings::kept_bytes`](crate::engines::Strings::kept_bytes).
            pub(crate) fn kept_bytes<'a>(&'a self, value: &'a LongValue) -> &'a [u8] {
                each!(self, host => host.kept_bytes(value))
            }

            /// See [`Strings::let_go`](crate::engines::Strings::let_go).
            pub(crate) fn let_go(&self, value: &LongValue, is_new: bool) {
                each!(self, host => host.let_go(value, is_new));
            }

            pub(crate) fn bulk_load(
                &self,
                records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
                fill: f64,
            ) -> Result<()> {
                each!(self, host => host.bulk_load_strings(records, fill))
            }

            /// See [`Strings::read_on`](crate::engines::Strings::read_on).
            pub(crate) fn read_on(
                &self,
                up: bool,
                unread: &mut StringRange,
                buffer: &mut StringBuffer,
                with_values: bool,
            ) -> Result<()> {
                each!(self, host => host.read_strings(up, unread, buffer, with_values))
            }

            pub(crate) fn expect_writable(&self) -> Result<()> {
                each!(self, host => host.expect_writable())
            }

            pub(crate) fn len(&self) -> Result<u64> {
                each!(self, host => host.len())
            }

            pub(crate) fn warm_up(&self) -> Result<()> {
                each!(self, host => host.warm_up())
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

            pub(crate) fn stat(&self) -> Result<StringStat> {
                each!(self, host => host.stat(self.kind()))
            }
        }
    };
}
string_engines!(any_strings);
