//! The types of a typed map, as its catalog entry keeps them.
//!
//! The codes of a type stand one behind the other, without padding: a code of one byte, and after it what belongs to it.
//!
//! | codes | type |
//! |---|---|
//! | 1 to 14, 16, 17 | [`Code`]: numbers, `bool`, `char`, `()`, `String`, `Vec<u8>` |
//! | 32, number | `[u8; N]` |
//! | 33, type | `Option` |
//! | 34 to 38, types | a tuple of two to six |
//! | 64, name | a type of values with an encoding of its own |
//! | 65, name, number | a plain struct of so many bytes |
//! | 66, name | what `serde` serializes, in the format `postcard` |
//!
//! A number has 7 bits in each byte, the lowest first; the last byte has bit 7 clear. A name is its length in one byte, and its bytes in UTF-8. The codes
//! of the key are followed by those of the value and by zeros.

use super::Place;
use crate::{Error, Result};

/// Bytes of a catalog entry that keep both types.
pub(crate) const CODE_BYTES: usize = 22;

macro_rules! codes {
    ({$($variant:ident = $code:literal, $name:literal;)+} {$($other:ident = $other_code:literal;)+}) => {
        /// A code. It is part of the file format: it is never changed and never used again.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Code {
            $($variant = $code,)+
            $($other = $other_code,)+
        }

        impl Code {
            fn of(byte: u8) -> Option<Self> {
                match byte {
                    $($code => Some(Self::$variant),)+
                    $($other_code => Some(Self::$other),)+
                    _ => None,
                }
            }

            /// The name of a type that has no more codes.
            fn simple(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)+
                    $(Self::$other => None,)+
                }
            }

            /// The type without more codes that has this name.
            pub(super) fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
codes! {
    {
        U8 = 1, "u8";
        U16 = 2, "u16";
        U32 = 3, "u32";
        U64 = 4, "u64";
        U128 = 5, "u128";
        I8 = 6, "i8";
        I16 = 7, "i16";
        I32 = 8, "i32";
        I64 = 9, "i64";
        I128 = 10, "i128";
        F32 = 11, "f32";
        F64 = 12, "f64";
        Bool = 13, "bool";
        Char = 14, "char";
        Unit = 15, "()";
        String = 16, "String";
        Bytes = 17, "Vec<u8>";
    }
    {
        Array = 32;
        Option = 33;
        Tuple2 = 34;
        Tuple3 = 35;
        Tuple4 = 36;
        Tuple5 = 37;
        Tuple6 = 38;
        Own = 64;
        Plain = 65;
        Postcard = 66;
    }
}

/// The codes of the types of a map, which its catalog entry keeps, so that the map is not opened with other types.
///
/// Programs meet this type when they implement [`StoredValue`](crate::StoredValue).
///
/// # Examples
///
/// ```
/// use indelible::{StoredValue, TypeCodes};
/// let (mut number, mut own) = (TypeCodes::default(), TypeCodes::default());
/// u64::name(&mut number);
/// own.own("Days");
/// assert_ne!(number, own);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeCodes {
    bytes: Vec<u8>,
}

impl TypeCodes {
    pub(super) fn push(&mut self, code: Code) {
        self.bytes.push(code as u8);
    }

    pub(super) fn push_number(&mut self, mut number: usize) {
        while number > 0x7f {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Adds an array of so many bytes.
    pub(super) fn push_array(&mut self, length: usize) {
        self.push(Code::Array);
        self.push_number(length);
    }

    pub(super) fn push_name(&mut self, name: &str) {
        // A name that is too long for the catalog makes all of them too long.
        self.bytes.push(name.len().min(255) as u8);
        self.bytes.extend_from_slice(name.as_bytes());
    }

    /// Adds a type of values that is encoded in a way of its own. Whoever changes the encoding changes the name.
    ///
    /// The catalog has 22 bytes for both types of a map; a name takes two more than it has, a type of numbers one.
    pub fn own(&mut self, name: &str) {
        self.push(Code::Own);
        self.push_name(name);
    }

    /// Makes sure that the catalog has room for so many codes.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if it has not.
    pub(super) fn fits(&self) -> Result<()> {
        let length = self.bytes.len();
        if length <= CODE_BYTES {
            return Ok(());
        }
        Err(Error::BadOption(format!(
            "the types of a map have at most {CODE_BYTES} bytes in the catalog, these have {length}: shorten the names of types of values, or \
             make several fields of the key one"
        )))
    }

    /// The codes as the catalog keeps them.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if they are too long.
    pub(crate) fn for_catalog(&self) -> Result<[u8; CODE_BYTES]> {
        self.fits()?;
        let mut entry = [0; CODE_BYTES];
        entry[..self.bytes.len()].copy_from_slice(&self.bytes);
        if names_of(&entry).is_none() {
            return Err(Error::BadOption(
                "a type of values has an empty name".into(),
            ));
        }
        Ok(entry)
    }
}

/// The names of the types of keys and of values, if an entry of the catalog has types that this version knows.
pub(crate) fn names_of(entry: &[u8; CODE_BYTES]) -> Option<[String; 2]> {
    let mut codes = &entry[..];
    let names = [take_type(&mut codes)?, take_type(&mut codes)?];
    codes.iter().all(|&byte| byte == 0).then_some(names)
}

/// Takes one type off the codes. The depth is limited by the length of an entry.
fn take_type(codes: &mut &[u8]) -> Option<String> {
    let code = Code::of(*codes.split_off_first()?)?;
    if let Some(name) = code.simple() {
        return Some(name.into());
    }
    let mut tuple = |fields: usize| {
        let fields: Option<Vec<String>> = (0..fields).map(|_| take_type(codes)).collect();
        Some(format!("({})", fields?.join(", ")))
    };
    match code {
        Code::Tuple2 => tuple(2),
        Code::Tuple3 => tuple(3),
        Code::Tuple4 => tuple(4),
        Code::Tuple5 => tuple(5),
        Code::Tuple6 => tuple(6),
        Code::Array => Some(format!("[u8; {}]", take_number(codes)?)),
        Code::Option => Some(format!("Option<{}>", take_type(codes)?)),
        Code::Own => Some(take_name(codes)?.into()),
        Code::Plain => {
            let name = take_name(codes)?;
            Some(format!("Plain<{name}> of {} bytes", take_number(codes)?))
        }
        Code::Postcard => Some(format!("Postcard<{}>", take_name(codes)?)),
        _ => None,
    }
}

/// How many bytes encodings of a type have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// The shortest encoding.
    pub(crate) least: u64,
    /// The shortest encodings of which each has one of the `Option`s within set to `Some`: the longest of these. If it is too long, there is an `Option` that can
    /// only be `None`.
    pub(crate) least_with_some: u64,
}

impl Lengths {
    fn of(bytes: u64) -> Self {
        Self {
            least: bytes,
            least_with_some: bytes,
        }
    }

    /// Those of two fields of a tuple, one behind the other.
    fn and(self, other: Self) -> Self {
        let with_some = |some: Self, shortest: Self| {
            let most = some.least_with_some;
            most.saturating_add(shortest.least)
        };
        Self {
            least: self.least.saturating_add(other.least),
            least_with_some: with_some(self, other).max(with_some(other, self)),
        }
    }
}

/// The lengths of encodings of the type of keys and of that of values, if an entry of the catalog has types that this version knows.
pub(crate) fn lengths_of(entry: &[u8; CODE_BYTES]) -> Option<[Lengths; 2]> {
    let mut codes = &entry[..];
    Some([
        take_lengths(&mut codes, Place::End)?,
        take_lengths(&mut codes, Place::End)?,
    ])
}

/// Takes one type off the codes. The depth is limited by the length of an entry.
fn take_lengths(codes: &mut &[u8], place: Place) -> Option<Lengths> {
    let code = Code::of(*codes.split_off_first()?)?;
    let mut tuple = |fields: usize| {
        let mut all = Lengths::of(0);
        for field in 1..=fields {
            let place = if field < fields { Place::Inside } else { place };
            all = all.and(take_lengths(codes, place)?);
        }
        Some(all)
    };
    Some(match code {
        Code::Tuple2 => tuple(2)?,
        Code::Tuple3 => tuple(3)?,
        Code::Tuple4 => tuple(4)?,
        Code::Tuple5 => tuple(5)?,
        Code::Tuple6 => tuple(6)?,
        Code::U8 | Code::I8 | Code::Bool => Lengths::of(1),
        Code::U16 | Code::I16 => Lengths::of(2),
        // As a value it has one byte more, which matters to no limit.
        Code::Char => Lengths::of(3),
        Code::U32 | Code::I32 | Code::F32 => Lengths::of(4),
        Code::U64 | Code::I64 | Code::F64 => Lengths::of(8),
        Code::U128 | Code::I128 => Lengths::of(16),
        Code::String | Code::Bytes => Lengths::of(match place {
            Place::Inside => 2,
            Place::End => 0,
        }),
        Code::Array => Lengths::of(take_number(codes)?),
        Code::Option => {
            let inner = take_lengths(codes, place)?;
            Lengths {
                least: 1,
                least_with_some: inner.least_with_some.saturating_add(1),
            }
        }
        Code::Plain => {
            take_name(codes)?;
            Lengths::of(take_number(codes)?)
        }
        // How long their encodings are is known to the program alone.
        Code::Own | Code::Postcard => {
            take_name(codes)?;
            Lengths::of(0)
        }
        Code::Unit => Lengths::of(0),
    })
}

fn take_number(codes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = *codes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_name<'a>(codes: &mut &'a [u8]) -> Option<&'a str> {
    let length = *codes.split_off_first()?;
    let name = codes.split_off(..usize::from(length))?;
    std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_codes_are_read_without_a_panic(codes in any::<[u8; CODE_BYTES]>()) {
            names_of(&codes);
            names_of(&codes.map(|byte| byte % 70));
            lengths_of(&codes);
            let codes = codes.map(|byte| byte % 70);
            assert!(names_of(&codes).is_none() || lengths_of(&codes).is_some());
        }
    }

    #[test]
    fn the_shortest_encodings_are_known() {
        for (key, least, least_with_some) in [
            ("u8", 1, 1),
            ("String", 0, 0),
            ("(String, String)", 2, 2),
            ("[u8; 300]", 300, 300),
            ("Option<(String, char)>", 1, 6),
            ("(Option<[u8; 9]>, Option<[u8; 7]>)", 2, 11),
            ("(u32, Option<Option<i128>>, f64, bool)", 14, 31),
            ("((Option<u16>, Vec<u8>), Option<u64>)", 4, 12),
        ] {
            let codes = TypeCodes::of_names(key, "u64").unwrap();
            let [of_key, of_value] = lengths_of(&codes.for_catalog().unwrap()).unwrap();
            let expected = Lengths {
                least,
                least_with_some,
            };
            assert_eq!(of_key, expected, "{key}");
            assert_eq!(of_value, Lengths::of(8));
        }
        // The longest arrays that a catalog entry can say are no overflow.
        let most = usize::MAX >> 1;
        let codes = TypeCodes::of_names(&format!("(u8, [u8; {most}])"), "u64").unwrap();
        let [key, _] = lengths_of(&codes.for_catalog().unwrap()).unwrap();
        assert_eq!(key.least, most as u64 + 1);
    }

    #[test]
    fn codes_that_this_version_does_not_know_are_refused() {
        let mut codes = [0; CODE_BYTES];
        codes[..2].copy_from_slice(&[Code::U8 as u8; 2]);
        assert_eq!(names_of(&codes), Some(["u8".into(), "u8".into()]));
        codes[CODE_BYTES - 1] = 1;
        assert_eq!(names_of(&codes), None, "something behind the types");
        assert_eq!(names_of(&[0; CODE_BYTES]), None);
        assert_eq!(names_of(&[Code::Option as u8; CODE_BYTES]), None);
        assert_eq!(names_of(&[200; CODE_BYTES]), None);
    }
}
