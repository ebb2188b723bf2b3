//! What `serde` serializes as values.

use super::names::Code;
use super::{AsValue, Named, StoredValue, TypeCodes};
use crate::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Deref;

/// A value that `serde` serializes, in the format [`postcard`](https://postcard.jamesmunns.com). With the feature `serde`.
///
/// The catalog has the name of the format and the [name](Named) of the type. The format does not describe itself: fields have no names in it, so the
/// fields of a struct may not be changed, and the variants of an enum can only be added to. For other changes give the type another name. A reference can be
/// written as `Postcard(&value)`.
///
/// A type that contains itself, such as a list of boxes, is read as deeply as its bytes say. Bytes that this type has not written, in a damaged file say, may say that
/// there are more levels than the stack has room for, and end the process. Types that do not contain themselves are safe from that.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Named, Pool, Postcard};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Order {
///     item: String,
///     pieces: Vec<u32>,
/// }
///
/// impl Named for Order {
///     const NAME: &'static str = "Order";
/// }
///
/// let orders = Pool::in_memory()?.typed::<(u32, u64), Postcard<Order>>("orders")?;
/// let order = Order { item: "lamp".into(), pieces: vec![1, 2] };
/// orders.insert((7, 1), Postcard(&order))?;
/// assert_eq!(orders.get((7, 1))?, Some(Postcard(order)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Postcard<T>(
    /// The value.
    pub T,
);

impl<T> Deref for Postcard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

fn with_postcard<R>(value: &impl Serialize, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
    match ::postcard::to_allocvec(value) {
        Ok(bytes) => Ok(use_value(&bytes)),
        Err(error) => Err(Error::NoEncoding(error.to_string())),
    }
}

impl<T: Serialize> AsValue<Self> for Postcard<T> {
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        with_postcard(&self.0, use_value)
    }
}

impl<T: Serialize> AsValue<Postcard<T>> for Postcard<&T> {
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        with_postcard(self.0, use_value)
    }
}

impl<T: Serialize + DeserializeOwned + Named + Send + Sync + 'static> StoredValue for Postcard<T> {
    type View<'a> = Self;

    fn name(codes: &mut TypeCodes) {
        codes.push(Code::Postcard);
        codes.push_name(T::NAME);
    }

    fn view(bytes: &[u8]) -> Option<Self> {
        let (value, rest) = ::postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(Self(value))
    }

    fn from_view(view: Self) -> Self {
        view
    }
}
