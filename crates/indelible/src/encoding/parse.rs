//! Types by their names: what [`names_of`](super::names_of) gives is read again, for tools that have names and no types.

use super::names::{Code, TypeCodes};
use crate::{Error, Result};

/// The tuples, by the number of their fields less two.
const TUPLES: [Code; 5] = [
    Code::Tuple2,
    Code::Tuple3,
    Code::Tuple4,
    Code::Tuple5,
    Code::Tuple6,
];

impl TypeCodes {
    /// The codes of a type of keys and a type of values by their names: `(u32, String)` and `[u8; 16]`.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if a name is that of no type, or of one that only programs know.
    pub(crate) fn of_names(key: &str, value: &str) -> Result<Self> {
        let mut codes = Self::default();
        codes.add_key(key)?;
        // Neither a tuple nor an `Option` can be stored as a value.
        let value = value.trim();
        match (array_length(value), Code::named(value)) {
            (Some(length), _) => codes.push_array(length),
            (None, Some(code)) => codes.push(code),
            (None, None) => return Err(unknown(value, "values")),
        }
        Ok(codes)
    }

    /// Adds a type of keys by its name.
    fn add_key(&mut self, name: &str) -> Result<()> {
        // Types that the catalog has no room for end here, before they are nested so deeply that the stack has none either.
        self.fits()?;
        let name = name.trim();
        if let Some(length) = array_length(name) {
            self.push_array(length);
            return Ok(());
        }
        if let Some(inner) = within(name, "Option<", ">") {
            self.push(Code::Option);
            return self.add_key(inner);
        }
        let Some(list) = within(name, "(", ")") else {
            let code = Code::named(name).filter(|&code| code != Code::Unit);
            self.push(code.ok_or_else(|| unknown(name, "keys"))?);
            return Ok(());
        };
        let fields = fields(list);
        let code = fields.len().checked_sub(2).and_then(|at| TUPLES.get(at));
        let code = code.ok_or_else(|| {
            Error::BadOption(format!("{name:?} has {} fields, not 2 to 6", fields.len()))
        })?;
        self.push(*code);
        fields.into_iter().try_for_each(|field| self.add_key(field))
    }
}

fn unknown(name: &str, what: &str) -> Error {
    Error::BadOption(format!(
        "{name:?} is not the name of a type of {what} that is known without the program"
    ))
}

fn array_length(name: &str) -> Option<usize> {
    within(name, "[u8; ", "]")?.trim().parse().ok()
}

/// What stands between two ends of a name.
fn within<'a>(name: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    name.strip_prefix(begin)?.strip_suffix(end)
}

/// The parts of a list that are separated by commas, but for commas in brackets.
fn fields(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|part: char| {
        match part {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            _ => {}
        }
        part == ',' && depth == 0
    })
    .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::names_of;
    use super::*;

    #[test]
    fn names_lead_to_the_types_that_have_them() {
        for (key, value) in [
            ("u8", "()"),
            ("String", "Vec<u8>"),
            ("[u8; 300]", "[u8; 0]"),
            ("Option<(u8, Option<[u8; 3]>)>", "f64"),
            ("(u8, i16, f32, bool, char, String)", "String"),
            ("((u8, u8), Option<(i8, i8, i8)>)", "bool"),
        ] {
            let codes = TypeCodes::of_names(key, value).unwrap();
            let names = names_of(&codes.for_catalog().unwrap()).unwrap();
            assert_eq!(names, [key, value]);
        }
    }

    #[test]
    fn what_names_no_type_is_refused() {
        for (key, value) in [
            ("()", "u8"),
            ("((), u8)", "u8"),
            ("(u8)", "u8"),
            ("(u8,)", "u8"),
            ("(u8, u8", "u8"),
            ("(u8), (u8)", "u8"),
            ("(u8, u8, u8, u8, u8, u8, u8)", "u8"),
            ("[u8; -1]", "u8"),
            ("[u8; 3", "u8"),
            ("Option<>", "u8"),
            ("", "u8"),
            ("Days", "u8"),
            ("u8", "(u8, u8)"),
            ("u8", "Option<u8>"),
            ("u8", "Plain<Point> of 16 bytes"),
            ("u8", ""),
        ] {
            assert!(TypeCodes::of_names(key, value).is_err(), "{key} to {value}");
        }
        // Known types, and more of them than the catalog has room for.
        let deep = format!("{}u8{}", "Option<".repeat(40), ">".repeat(40));
        let refused = TypeCodes::of_names(&deep, "u8").unwrap_err().to_string();
        assert!(refused.contains("at most 22 bytes"), "{refused}");
        let deep = format!("{}u8{}", "Option<".repeat(100_000), ">".repeat(100_000));
        assert!(TypeCodes::of_names(&deep, "u8").is_err());
    }
}
