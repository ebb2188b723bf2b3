//! Plain structs as values.

use super::names::Code;
use super::{AsValue, Named, StoredValue, TypeCodes};
use crate::Result;
use std::ops::Deref;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A plain struct as a value: its bytes are stored as they are in memory. With the feature `zerocopy`.
///
/// The struct derives the traits of [`zerocopy`](::zerocopy) that say that it has no padding and that any bytes are one. The catalog has its [name](Named)
/// and its size. Its bytes are in the order of the machine's numbers; a pool is not opened on a machine of the other order.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Named, Plain, Pool};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Account {
///     cents: i64,
///     limit: u32,
///     flags: u32,
/// }
///
/// impl Named for Account {
///     const NAME: &'static str = "Account";
/// }
///
/// let accounts = Pool::in_memory()?.typed::<String, Plain<Account>>("accounts")?;
/// let account = Account { cents: -5, limit: 100, flags: 0 };
/// accounts.insert("Ada", Plain(account))?;
/// assert_eq!(accounts.get_with("Ada", |found| found.cents)?, Some(-5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plain<T>(
    /// The struct.
    pub T,
);

impl<T> Deref for Plain<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: IntoBytes + Immutable> AsValue<Self> for Plain<T> {
    #[inline]
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(use_value(self.0.as_bytes()))
    }
}

impl<T: FromBytes + IntoBytes + Immutable + Named + Send + Sync + 'static> StoredValue
    for Plain<T>
{
    // A copy, as bytes in a leaf are not aligned.
    type View<'a> = Self;

    fn name(codes: &mut TypeCodes) {
        codes.push(Code::Plain);
        codes.push_name(T::NAME);
        codes.push_number(size_of::<T>());
    }

    #[inline]
    fn view(bytes: &[u8]) -> Option<Self> {
        T::read_from_bytes(bytes).ok().map(Self)
    }

    #[inline]
    fn from_view(view: Self) -> Self {
        view
    }
}
