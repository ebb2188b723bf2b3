//! The traits of values, and the values that the library knows by itself.

use super::TypeCodes;
use super::names::Code;
use crate::Result;
use std::borrow::Cow;
use std::sync::Arc;

/// A type of values of a [`TypedMap`](crate::TypedMap): it has an encoding into bytes.
///
/// Implemented for `u8 u16 u32 u64 u128`, `i8 i16 i32 i64 i128`, `f32`, `f64`, `bool`, `char`, `()` (the map is a set), `String`, `Vec<u8>` and
/// `[u8; N]`. `Plain<T>` is for plain structs (with the feature `zerocopy`), `Postcard<T>` for whatever `serde` serializes (with the feature
/// `serde`). Numbers and characters lie in the pool with the lowest byte first, all else as it is.
///
/// # Examples
///
/// A type with an encoding of its own:
///
/// ```
/// use indelible::{AsValue, Result, StoredValue, TypeCodes};
///
/// /// A set of up to 64 small numbers.
/// #[derive(Debug, PartialEq)]
/// struct Days(u64);
///
/// impl AsValue<Days> for Days {
///     fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
///         let bytes = self.0.to_le_bytes();
///         let length = bytes.iter().rposition(|&byte| byte > 0).map_or(0, |last| last + 1);
///         Ok(use_value(&bytes[..length]))
///     }
/// }
///
/// impl StoredValue for Days {
///     type View<'a> = Days;
///
///     fn name(codes: &mut TypeCodes) {
///         codes.own("Days");
///     }
///
///     fn view(bytes: &[u8]) -> Option<Days> {
///         let mut word = [0; 8];
///         word.get_mut(..bytes.len())?.copy_from_slice(bytes);
///         Some(Days(u64::from_le_bytes(word)))
///     }
///
///     fn from_view(view: Days) -> Days {
///         view
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let map = indelible::Pool::in_memory()?.typed::<String, Days>("open")?;
/// map.insert("museum", Days(0b10))?;
/// assert_eq!(map.get("museum")?, Some(Days(2)));
/// # Ok(())
/// # }
/// ```
pub trait StoredValue: AsValue<Self> + Send + Sync + Sized + 'static {
    /// How a value is seen where it lies, without a copy: `&str` of `String`.
    type View<'a>;

    /// Adds the codes of the type to those that the catalog keeps.
    fn name(codes: &mut TypeCodes);

    /// The value with this encoding; `None` if no value has it, so that the bytes are damaged.
    fn view(bytes: &[u8]) -> Option<Self::View<'_>>;

    /// The value that a view shows.
    fn from_view(view: Self::View<'_>) -> Self;
}

/// What can be given as a value of the type `V`: a `V`, `str` for `String`, `[u8]` for `Vec<u8>`; as a reference, a `Box`, an `Arc` or a `Cow` too.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let map = indelible::Pool::in_memory()?.typed::<u32, String>("m")?;
/// map.insert(1, "borrowed")?;
/// map.insert(2, String::from("owned"))?;
/// # Ok(())
/// # }
/// ```
pub trait AsValue<V> {
    /// What `use_value` makes of the encoding.
    ///
    /// # Errors
    ///
    /// [`Error::NoEncoding`](crate::Error::NoEncoding) if the value has none.
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R>;
}

/// Implements the trait for references and pointers to what can be given.
macro_rules! pointers {
    ($([$($also:tt)*] $pointer:ty;)+) => {$(
        impl<V, Q: AsValue<V> + ?Sized $($also)*> AsValue<V> for $pointer {
            #[inline]
            fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
                (**self).with_bytes(use_value)
            }
        }
    )+};
}
pointers! {
    [] &Q;
    [] Box<Q>;
    [] Arc<Q>;
    [+ ToOwned] Cow<'_, Q>;
}

/// The name of a struct in the catalog, for `Plain<T>` and `Postcard<T>`. A map of structs of another name is not opened.
///
/// The catalog has 22 bytes for both types of a map, so the name should be short. Whoever changes the struct so that old values mean something else
/// changes the name.
///
/// # Examples
///
/// ```
/// struct Order;
/// impl indelible::Named for Order {
///     const NAME: &'static str = "Order/1";
/// }
/// ```
pub trait Named {
    /// The name.
    const NAME: &'static str;
}

/// Values that are copied out: type, code, how they become bytes, and back.
macro_rules! copied {
    ($($type:ident, $code:ident, $to:expr, $from:expr;)+) => {$(
        impl AsValue<Self> for $type {
            #[inline]
            fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
                Ok(use_value(&$to(*self)))
            }
        }

        impl StoredValue for $type {
            type View<'a> = Self;

            fn name(codes: &mut TypeCodes) {
                codes.push(Code::$code);
            }

            #[inline]
            fn view(bytes: &[u8]) -> Option<Self> {
                $from(bytes.try_into().ok()?)
            }

            #[inline]
            fn from_view(view: Self) -> Self {
                view
            }
        }
    )+};
}
macro_rules! numbers {
    ($($type:ident, $code:ident;)+) => {
        copied! {$($type, $code, $type::to_le_bytes, |bytes| Some($type::from_le_bytes(bytes));)+}
    };
}
numbers! {
    u8, U8;
    u16, U16;
    u32, U32;
    u64, U64;
    u128, U128;
    i8, I8;
    i16, I16;
    i32, I32;
    i64, I64;
    i128, I128;
    f32, F32;
    f64, F64;
}
copied! {
    bool, Bool, |value: bool| [u8::from(value)], |[byte]: [u8; 1]| (byte <= 1).then_some(byte == 1);
    char, Char, |value: char| u32::from(value).to_le_bytes(), |bytes| char::from_u32(u32::from_le_bytes(bytes));
}

/// Values that are seen where they lie: what else can be given, the type, its view, the codes, and how bytes become a view.
macro_rules! seen {
    ($($({$N:ident})? [$($given:ty)?] $type:ty, $view:ty, $name:expr, $from:expr;)+) => {$(
        impl$(<const $N: usize>)? AsValue<Self> for $type {
            #[inline]
            fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
                Ok(use_value(self.as_ref()))
            }
        }

        $(impl AsValue<$type> for $given {
            #[inline]
            fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
                Ok(use_value(self.as_ref()))
            }
        })?

        impl$(<const $N: usize>)? StoredValue for $type {
            type View<'a> = &'a $view;

            fn name(codes: &mut TypeCodes) {
                let name: fn(&mut TypeCodes) = $name;
                name(codes);
            }

            #[inline]
            fn view(bytes: &[u8]) -> Option<&$view> {
                let from: fn(&[u8]) -> Option<&$view> = $from;
                from(bytes)
            }

            #[inline]
            fn from_view(view: &$view) -> Self {
                view.to_owned()
            }
        }
    )+};
}
seen! {
    [str] String, str, |codes| codes.push(Code::String), |bytes| std::str::from_utf8(bytes).ok();
    [[u8]] Vec<u8>, [u8], |codes| codes.push(Code::Bytes), |bytes| Some(bytes);
    {N} [] [u8; N], [u8; N], |codes| codes.push_array(N), |bytes| bytes.try_into().ok();
}

impl<const N: usize> AsValue<Vec<u8>> for [u8; N] {
    #[inline]
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(use_value(self))
    }
}

impl AsValue<Self> for () {
    #[inline]
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(use_value(&[]))
    }
}

impl StoredValue for () {
    type View<'a> = ();

    fn name(codes: &mut TypeCodes) {
        codes.push(Code::Unit);
    }

    #[inline]
    fn view(bytes: &[u8]) -> Option<()> {
        bytes.is_empty().then_some(())
    }

    #[inline]
    fn from_view((): ()) {}
}
