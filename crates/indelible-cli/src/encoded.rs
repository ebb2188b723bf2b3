//! Typed maps on the command line, whose types are known from the catalog alone, and maps of byte strings, which have the types that need no encoding.
//!
//! This file has the types, `map` the maps.
//!
//! A key or a value of a simple type is typed and printed as in maps of words, a string or a byte string as in maps of byte strings. A key that is a tuple
//! is a JSON array, and an `Option` is what it holds, as JSON, or `null`. The bytes of values of a program's own types are printed, and cannot be typed.

mod map;

pub use map::{EncodedMap, find, open};

use crate::strings::Form;
use crate::text::{Text, beginning, fill, quoted, show_filled};
use anyhow::{Context, Result, bail, ensure};
use indelible::{AsKey, KeyBuffer, OrderedKey, Place, StoredValue};
use serde_json::Value;

/// What a key that is `None` begins with, and one that is something.
const OPTIONS: [u8; 2] = [0, 1];

/// A type of one length whose values have a short text.
#[derive(Clone, Copy)]
pub struct Simple {
    add_key: fn(&str, &mut KeyBuffer, Place) -> Result<()>,
    take_key: fn(&mut &[u8], Place) -> Option<String>,
    value: fn(&str) -> Result<Vec<u8>>,
    show_value: fn(&[u8]) -> Option<String>,
}

impl Simple {
    const fn of<T: OrderedKey + StoredValue + Text>() -> Self {
        Self {
            add_key: |text, key, place| {
                AsKey::<T>::encode(&T::parse(text)?, key, place);
                Ok(())
            },
            take_key: |bytes, place| Some(T::decode(bytes, place)?.show()),
            value: |text| Ok(T::parse(text)?.with_bytes(<[u8]>::to_vec)?),
            show_value: |bytes| Some(T::from_view(T::view(bytes)?).show()),
        }
    }
}

/// A type, by its name in the catalog.
pub enum Encoding {
    Simple(Simple),
    Unit,
    Text,
    Bytes,
    Array(usize),
    Option(Box<Self>),
    Tuple(Vec<Self>),
    /// A type of values that only programs know.
    Own,
}

/// The parts of a list that are separated by commas, but for commas in brackets.
fn fields(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut fields) = (0, 0, Vec::new());
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' | b'<' | b'[' => depth += 1,
            b')' | b'>' | b']' => depth -= 1,
            b',' if depth == 0 => {
                fields.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    fields.push(&list[start..]);
    fields
}

/// Where each of so many fields stands in a key, in which their tuple stands at `tuple`.
fn places(fields: usize, tuple: Place) -> impl Iterator<Item = Place> {
    (1..=fields).map(move |number| match number < fields {
        true => Place::Inside,
        false => tuple,
    })
}

/// What stands between two ends of a name.
pub fn within<'a>(name: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    name.strip_prefix(begin)?.strip_suffix(end)
}

impl Encoding {
    /// The type of this name.
    pub fn named(name: &str) -> Self {
        let name = name.trim();
        match name {
            "u8" => Self::Simple(Simple::of::<u8>()),
            "u16" => Self::Simple(Simple::of::<u16>()),
            "u32" => Self::Simple(Simple::of::<u32>()),
            "u64" => Self::Simple(Simple::of::<u64>()),
            "u128" => Self::Simple(Simple::of::<u128>()),
            "i8" => Self::Simple(Simple::of::<i8>()),
            "i16" => Self::Simple(Simple::of::<i16>()),
            "i32" => Self::Simple(Simple::of::<i32>()),
            "i64" => Self::Simple(Simple::of::<i64>()),
            "i128" => Self::Simple(Simple::of::<i128>()),
            "f32" => Self::Simple(Simple::of::<f32>()),
            "f64" => Self::Simple(Simple::of::<f64>()),
            "bool" => Self::Simple(Simple::of::<bool>()),
            "char" => Self::Simple(Simple::of::<char>()),
            "()" => Self::Unit,
            "String" => Self::Text,
            "Vec<u8>" => Self::Bytes,
            _ => Self::compound(name).unwrap_or(Self::Own),
        }
    }

    fn compound(name: &str) -> Option<Self> {
        if let Some(length) = within(name, "[u8; ", "]") {
            return Some(Self::Array(length.parse().ok()?));
        }
        if let Some(inner) = within(name, "Option<", ">") {
            return Some(Self::Option(Box::new(Self::named(inner))));
        }
        let list = within(name, "(", ")")?;
        Some(Self::Tuple(
            fields(list).into_iter().map(Self::named).collect(),
        ))
    }

    /// Whether keys may have this type.
    pub fn can_be_key(&self) -> bool {
        match self {
            Self::Unit | Self::Own => false,
            Self::Option(inner) => inner.can_be_key(),
            Self::Tuple(fields) => fields.len() > 1 && fields.iter().all(Self::can_be_key),
            _ => true,
        }
    }

    /// Whether values may have this type, and are written without the program that knows them.
    pub fn can_be_value(&self) -> bool {
        !matches!(self, Self::Own | Self::Option(_) | Self::Tuple(_))
    }

    /// Whether text or bytes are typed and printed by way of a [`Form`].
    fn has_bytes(&self) -> bool {
        match self {
            Self::Simple(_) | Self::Unit => false,
            Self::Text | Self::Bytes | Self::Array(_) | Self::Own => true,
            Self::Option(inner) => inner.has_bytes(),
            Self::Tuple(fields) => fields.iter().any(Self::has_bytes),
        }
    }

    fn is_compound(&self) -> bool {
        matches!(self, Self::Option(_) | Self::Tuple(_))
    }

    /// The encoding of a key.
    fn key(&self, text: &str, form: Form) -> Result<Vec<u8>> {
        let mut key = KeyBuffer::new();
        if self.is_compound() {
            self.add_json(&json(text)?, form, &mut key, Place::End)?;
        } else {
            self.add_text(text, form, &mut key, Place::End)?;
        }
        Ok(key.as_slice().to_vec())
    }

    /// Adds the key in a cell of a table. There strings are as they are, a tuple is a JSON array, and an empty cell is `None`.
    fn add_cell(&self, cell: &[u8], key: &mut KeyBuffer, place: Place) -> Result<()> {
        const TEXT: Form = Form { hex: false };
        let text = || str::from_utf8(cell).context("the cell is not UTF-8");
        match self {
            Self::Bytes => AsKey::<Vec<u8>>::encode(cell, key, place),
            Self::Text => AsKey::<String>::encode(text()?, key, place),
            Self::Option(_) if cell.is_empty() => key.push(&OPTIONS[..1]),
            Self::Option(inner) => {
                key.push(&OPTIONS[1..]);
                inner.add_cell(cell, key, place)?;
            }
            Self::Tuple(_) => self.add_json(&json(text()?)?, TEXT, key, place)?,
            _ => self.add_text(text()?, TEXT, key, place)?,
        }
        Ok(())
    }

    /// The key in the cells of a row of a table: in one cell, or each field of a tuple in one.
    fn key_of_cells(&self, cells: &[&[u8]]) -> Result<Vec<u8>> {
        let mut key = KeyBuffer::new();
        match (self, cells) {
            (Self::Tuple(_), [cell]) => self
                .add_cell(cell, &mut key, Place::End)
                .context("it is a tuple in one column; where each field has a column, name each with a --key of its own")?,
            (_, [cell]) => self.add_cell(cell, &mut key, Place::End)?,
            (Self::Tuple(fields), _) if fields.len() == cells.len() => {
                let places = places(fields.len(), Place::End);
                for (number, ((field, cell), place)) in
                    (1..).zip(fields.iter().zip(cells).zip(places))
                {
                    field
                        .add_cell(cell, &mut key, place)
                        .with_context(|| format!("field {number} of the key"))?;
                }
            }
            (Self::Tuple(fields), _) => bail!(
                "the key has {} fields, and {} columns were named",
                fields.len(),
                cells.len()
            ),
            _ => bail!(
                "the key is no tuple, and {} columns were named",
                cells.len()
            ),
        }
        Ok(key.as_slice().to_vec())
    }

    /// The value in a cell of a table. There strings are as they are.
    fn value_of_cell(&self, cell: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Bytes => Ok(cell.to_vec()),
            Self::Text => Ok(string(cell.to_vec())?.into_bytes()),
            _ => {
                let text = str::from_utf8(cell).context("the cell is not UTF-8")?;
                self.value(text, Form { hex: false })
            }
        }
    }

    /// Adds a key that is neither a tuple nor an `Option`.
    fn add_text(&self, text: &str, form: Form, key: &mut KeyBuffer, place: Place) -> Result<()> {
        match self {
            Self::Simple(simple) => (simple.add_key)(text, key, place)?,
            Self::Text => AsKey::<String>::encode(&string(form.parse(text)?)?, key, place),
            Self::Bytes => AsKey::<Vec<u8>>::encode(&form.parse(text)?, key, place),
            Self::Array(length) => key.push(&array(*length, text, form)?),
            _ => bail!("{} is no key", quoted(text)),
        }
        Ok(())
    }

    fn add_json(&self, json: &Value, form: Form, key: &mut KeyBuffer, place: Place) -> Result<()> {
        match (self, json) {
            (Self::Option(_), Value::Null) => key.push(&OPTIONS[..1]),
            (Self::Option(inner), _) => {
                key.push(&OPTIONS[1..]);
                inner.add_json(json, form, key, place)?;
            }
            (Self::Tuple(fields), Value::Array(given)) => {
                ensure!(
                    given.len() == fields.len(),
                    "{json} has {} fields, and the key {}",
                    given.len(),
                    fields.len()
                );
                Self::add_fields(fields, given, form, key, place)?;
            }
            (Self::Text, Value::String(text)) => AsKey::<String>::encode(text, key, place),
            (Self::Simple(_), Value::Number(_) | Value::Bool(_)) => {
                self.add_text(&json.to_string(), form, key, place)?;
            }
            (_, Value::String(text)) => self.add_text(text, form, key, place)?,
            (Self::Text | Self::Bytes | Self::Array(_), Value::Number(_) | Value::Bool(_)) => {
                bail!("{json} is no text, which is in double quotes")
            }
            (Self::Tuple(fields), _) => {
                bail!(
                    "{json} is no JSON array of {} fields, as a key is that is a tuple",
                    fields.len()
                )
            }
            _ => bail!("{json} is not what the key has there"),
        }
        Ok(())
    }

    /// Adds the first fields of a tuple.
    fn add_fields(
        fields: &[Self],
        given: &[Value],
        form: Form,
        key: &mut KeyBuffer,
        place: Place,
    ) -> Result<()> {
        let places = places(fields.len(), place);
        for ((field, json), place) in fields.iter().zip(given).zip(places) {
            field.add_json(json, form, key, place)?;
        }
        Ok(())
    }

    /// What all keys begin with whose first fields are these, or, if the key is a string, that begin so.
    fn prefix(&self, text: &str, form: Form) -> Result<Vec<u8>> {
        let Self::Tuple(fields) = self else {
            return self.key(text, form);
        };
        let json = json(text)?;
        let given = json.as_array().filter(|given| given.len() <= fields.len());
        let given = given.with_context(|| {
            format!("{json} is no array of the first of {} fields", fields.len())
        })?;
        let mut key = KeyBuffer::new();
        Self::add_fields(fields, given, form, &mut key, Place::End)?;
        Ok(key.as_slice().to_vec())
    }

    /// The text of a key; `None` if the bytes are the encoding of none.
    fn show_key(&self, mut bytes: &[u8], form: Form) -> Option<String> {
        let text = match self {
            Self::Text => form.show(String::decode(&mut bytes, Place::End)?.as_bytes()),
            Self::Tuple(_) | Self::Option(_) => {
                self.take(&mut bytes, form, Place::End)?.to_string()
            }
            _ => match self.take(&mut bytes, form, Place::End)? {
                Value::String(text) => text,
                other => other.to_string(),
            },
        };
        bytes.is_empty().then_some(text)
    }

    /// Takes a key off the beginning of `bytes`, as JSON.
    fn take(&self, bytes: &mut &[u8], form: Form, place: Place) -> Option<Value> {
        Some(match self {
            Self::Simple(simple) => json_of((simple.take_key)(bytes, place)?),
            Self::Text => Value::String(String::decode(bytes, place)?),
            Self::Bytes => Value::String(form.show(&Vec::<u8>::decode(bytes, place)?)),
            Self::Array(length) => Value::String(show_array(bytes.split_off(..*length)?, form)),
            Self::Option(inner) => match bytes.split_off_first()? {
                byte if *byte == OPTIONS[0] => Value::Null,
                byte if *byte == OPTIONS[1] => inner.take(bytes, form, place)?,
                _ => return None,
            },
            Self::Tuple(fields) => {
                let mut taken = Vec::new();
                for (field, place) in fields.iter().zip(places(fields.len(), place)) {
                    taken.push(field.take(bytes, form, place)?);
                }
                Value::Array(taken)
            }
            Self::Unit | Self::Own => return None,
        })
    }

    /// The encoding of a value.
    fn value(&self, text: &str, form: Form) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Simple(simple) => (simple.value)(text)?,
            Self::Unit => Vec::new(),
            Self::Text => string(form.parse(text)?)?.into_bytes(),
            Self::Bytes => form.parse(text)?,
            Self::Array(length) => array(*length, text, form)?,
            _ => bail!("values of this type are written by programs that know it"),
        })
    }

    /// The text of a value; `None` if the bytes are the encoding of none.
    fn show_value(&self, bytes: &[u8], form: Form) -> Option<String> {
        Some(match self {
            Self::Simple(simple) => (simple.show_value)(bytes)?,
            Self::Unit if !bytes.is_empty() => return None,
            Self::Text => form.show(str::from_utf8(bytes).ok()?.as_bytes()),
            Self::Array(length) if bytes.len() != *length => return None,
            Self::Array(_) => show_array(bytes, form),
            _ => form.show(bytes),
        })
    }
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| {
        // In backticks, since quotes around it would look like those that it lacks.
        format!(
            "`{}` is not JSON, as a key is that is a tuple or an Option: there text is in double quotes, and None is null",
            beginning(text)
        )
    })
}

/// A number or a bool as JSON has it; as a string what JSON cannot hold exactly.
fn json_of(text: String) -> Value {
    if let Ok(json @ (Value::Number(_) | Value::Bool(_))) = serde_json::from_str::<Value>(&text) {
        let again = json.to_string();
        if again == text {
            return json;
        }
    }
    Value::String(text)
}

fn string(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).context("a string is UTF-8")
}

fn array(length: usize, text: &str, form: Form) -> Result<Vec<u8>> {
    if form.hex {
        let bytes = form.parse(text)?;
        ensure!(
            bytes.len() == length,
            "{} has not {length} bytes",
            quoted(text)
        );
        return Ok(bytes);
    }
    let mut bytes = vec![0; length];
    fill(&mut bytes, text)?;
    Ok(bytes)
}

fn show_array(bytes: &[u8], form: Form) -> String {
    match form.hex {
        true => form.show(bytes),
        false => show_filled(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indelible::Pool;

    const FORM: Form = Form { hex: false };

    /// What a map of these types has of a record that its type has written: the texts; and whether the texts lead back to it.
    fn texts<K: OrderedKey, V: StoredValue>(key: K, value: V) -> [String; 2] {
        let pool = Pool::in_memory().unwrap();
        let typed = pool.typed::<K, V>("m").unwrap();
        typed.insert(&key, &value).unwrap();
        let map = EncodedMap::open(&pool, "m", FORM).unwrap().unwrap();
        let record = map.range(None, None).unwrap().next().unwrap().unwrap();
        let texts = map.show(&record.0, &record.1).unwrap();
        assert_eq!(map.get(&texts[0]).unwrap().as_ref(), Some(&texts[1]));
        assert_eq!(map.del(&texts[0]).unwrap().as_ref(), Some(&texts[1]));
        assert!(typed.get(&key).unwrap().is_none());
        map.put(&texts[0], &texts[1]).unwrap();
        assert!(typed.get(&key).unwrap().is_some());
        let [from, to] = [Some(texts[0].as_str()); 2];
        assert_eq!(map.range(from, to).unwrap().count(), 1);
        texts
    }

    #[test]
    fn records_of_every_type_are_read_as_they_are_shown() {
        assert_eq!(texts(u128::MAX, i128::MIN)[0], u128::MAX.to_string());
        assert_eq!(texts(-5_i8, 5_u8), ["-5", "5"]);
        assert_eq!(texts(-0.25_f64, f32::INFINITY), ["-0.25", "inf"]);
        assert_eq!(texts(true, '\u{e9}'), ["true", "\u{e9}"]);
        let text = String::from("a\n\0\u{e9}");
        assert_eq!(texts(text.clone(), text), ["a\\n\\x00\u{e9}"; 2]);
        assert_eq!(texts(vec![b'a', 255], vec![0; 2]), ["a\\xff", "\\x00\\x00"]);
        assert_eq!(texts([7_u8; 16], ())[0], format!("0x{}", "07".repeat(16)));
        let key = (7_u32, String::from("a\0b"), Some(-1_i64));
        assert_eq!(texts(key, 1_u64)[0], "[7,\"a\\u0000b\",-1]");
        let key = (None::<u64>, u128::MAX, 'x');
        assert_eq!(
            texts(key, 1_u16)[0],
            format!("[null,\"{}\",\"x\"]", u128::MAX)
        );
        assert_eq!(texts(Some(String::from("null")), 1_u64)[0], "\"null\"");
        assert_eq!(texts((1e300_f64, vec![1_u8]), 2_u64)[1], "2");
        // A number of JSON that is read as another one would be shown as a string.
        let key = (1.9021754086561486_f64, 1_u8);
        assert_eq!(texts(key, 1_u64)[0], "[1.9021754086561486,1]");
    }

    #[test]
    fn prefixes_are_first_fields_or_the_beginning_of_a_string() {
        let pool = Pool::in_memory().unwrap();
        let tuples = pool.typed::<(u32, String), ()>("t").unwrap();
        let strings = pool.typed::<String, ()>("s").unwrap();
        for tenant in 0..3 {
            for name in ["a", "ab", "b"] {
                tuples.insert((tenant, name), ()).unwrap();
                strings.insert(name, ()).unwrap();
            }
        }
        let map = EncodedMap::open(&pool, "t", FORM).unwrap().unwrap();
        let count = |prefix| map.prefix(prefix).unwrap().count();
        assert_eq!([count("[1]"), count("[]"), count("[1,\"a\"]")], [3, 9, 2]);
        assert!(map.prefix("[1,\"a\",2]").is_err() && map.prefix("1").is_err());
        let map = EncodedMap::open(&pool, "s", FORM).unwrap().unwrap();
        assert_eq!(map.prefix("a").unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_key_or_value_is_refused() {
        let pool = Pool::in_memory().unwrap();
        pool.typed::<(u8, Option<bool>), [u8; 3]>("m").unwrap();
        let map = EncodedMap::open(&pool, "m", FORM).unwrap().unwrap();
        for key in [
            "",
            "1",
            "[1]",
            "[256,true]",
            "[1,1]",
            "[\"x\",null]",
            "[1,true,2]",
            "{}",
        ] {
            assert!(map.get(key).is_err(), "{key}");
        }
        assert_eq!(map.get("[1,null]").unwrap(), None);
        assert!(map.put("[1,null]", "abcd").is_err());
        assert!(EncodedMap::open(&pool, "other", FORM).unwrap().is_none());
    }
}
