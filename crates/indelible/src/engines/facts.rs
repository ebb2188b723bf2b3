//! Facts: what an object is made of, in a form that can be printed without knowing the engine.

/// What a number counts or measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Things: nodes, levels, changes.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// A share of a whole, 0 to 1.
    Share,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "ns",
            Self::Share => "share",
        })
    }
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FactValue {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

impl FactValue {
    /// The number as a float.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }

    /// The number as a whole number; the part of a float behind the point is dropped.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        match self {
            Self::Whole(number) => number,
            Self::Real(number) => number as u64,
        }
    }
}

/// One thing that an engine says of an object.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
/// for fact in map.stat()?.facts {
///     println!("{:<20} {:>10} {}", fact.name, fact.value.as_f64(), fact.unit);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fact {
    /// Its name, in words separated by hyphens, unique in the list: `data-nodes`.
    pub name: &'static str,
    /// What the value counts or measures.
    pub unit: Unit,
    /// The number.
    pub value: FactValue,
    /// What the fact means, in a sentence or a part of one.
    pub meaning: &'static str,
    /// Whether the number adds up what has happened since the map was opened, such as leaf splits. Otherwise it says what the map
    /// is made of now. The difference of two such numbers tells what happened in between.
    ///
    /// The time that changes took, if the engine measures it, follows their count in the list: a fact of nanoseconds.
    pub since_open: bool,
}

impl Fact {
    pub(crate) fn count(name: &'static str, value: u64, meaning: &'static str) -> Self {
        Self::whole(name, Unit::Count, value, meaning)
    }

    pub(crate) fn bytes(name: &'static str, value: u64, meaning: &'static str) -> Self {
        Self::whole(name, Unit::Bytes, value, meaning)
    }

    /// A number of changes since the map was opened.
    pub(crate) fn changes(name: &'static str, value: u64, meaning: &'static str) -> Self {
        Self {
            since_open: true,
            ..Self::count(name, value, meaning)
        }
    }

    /// The time that `changes` took together, with a name and a meaning of its own. The two facts belong into the list together, in
    /// this order.
    pub(crate) fn timed(
        changes: Self,
        name: &'static str,
        nanoseconds: u64,
        meaning: &'static str,
    ) -> [Self; 2] {
        let time = Self {
            since_open: true,
            ..Self::whole(name, Unit::Nanoseconds, nanoseconds, meaning)
        };
        [changes, time]
    }

    /// `part` of `whole`; 0 of nothing.
    pub(crate) fn share(name: &'static str, part: f64, whole: f64, meaning: &'static str) -> Self {
        let value = if whole > 0.0 { part / whole } else { 0.0 };
        Self {
            name,
            unit: Unit::Share,
            value: FactValue::Real(value),
            meaning,
            since_open: false,
        }
    }

    /// A number of things that need not be whole, an average say.
    pub(crate) fn average(name: &'static str, sum: f64, of: f64, meaning: &'static str) -> Self {
        Self {
            unit: Unit::Count,
            ..Self::share(name, sum, of, meaning)
        }
    }

    fn whole(name: &'static str, unit: Unit, value: u64, meaning: &'static str) -> Self {
        Self {
            name,
            unit,
            value: FactValue::Whole(value),
            meaning,
            since_open: false,
        }
    }
}
