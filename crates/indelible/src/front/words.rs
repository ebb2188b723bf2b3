//! Maps whose types are known only at run time: for tools.

use super::catalog::Holds;
use super::{Map, MapInfo, MapOptions, Pool, Type};
use crate::{Error, Result};

impl Pool {
    /// Opens the map `name` as encoded words, creating it with these types and with `options` if it is not there.
    ///
    /// For tools, which get to know the types at run time: [`map_with`](Self::map_with) for one [`Type`] of keys and one of values in place
    /// of two type parameters. In the pool there is no difference between a map that was created here and one that `map_with` has
    /// created.
    ///
    /// # The words
    ///
    /// The map holds for each key what [`Key::encode`](crate::Key::encode) makes of it, and for each value what
    /// [`Value::to_word`](crate::Value::to_word) makes of it. The order of the words of keys is the order of the keys, so ranges, `first` and
    /// `last` mean what they mean in the typed map. A tool that has the words of a record turns them back with
    /// [`Key::decode`](crate::Key::decode) and [`Value::from_word`](crate::Value::from_word) of the type that [`MapInfo`] names.
    ///
    /// Nothing checks the words that are written. After a word that is no encoding of a key or a value of the map's types (2 in a map of
    /// `bool`), the typed map reports [`Error::Damaged`] when it reads the record.
    ///
    /// A map that is open both typed and as words is one map: what is written through one handle is read through the other at once.
    ///
    /// # Errors
    ///
    /// Those of [`map_with`](Self::map_with), and [`Error::BadOption`] if `key` is [`Type::Unit`], which is a type of values alone.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Key, Kind, Pool, Type, Value};
    /// let pool = Pool::in_memory()?;
    /// let words = pool.map_of_words("heights", Type::I16, Type::F32, Kind::default())?;
    /// words.insert((-7_i16).encode()?, 1.5_f32.to_word())?;
    ///
    /// let typed = pool.open_map::<i16, f32>("heights")?;
    /// assert_eq!(typed.get(-7)?, Some(1.5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn map_of_words(
        &self,
        name: &str,
        key: Type,
        value: Type,
        options: impl Into<MapOptions>,
    ) -> Result<Map<u64, u64>> {
        if !key.can_be_key() {
            return Err(Error::BadOption(format!("{key} cannot be a key")));
        }
        self.open_or_create(name, Holds::Map([key, value]), &options.into())
            .map(Map::new)
    }

    /// Opens the map `name` as encoded words, whatever its types and its kind of index are, and says what they are. O(1).
    ///
    /// [`map_of_words`](Self::map_of_words) says what the words are, and what follows from writing others.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::Damaged`]; [`Error::WrongType`] if this version does not know the types or the kind of index.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Key, Pool, Type};
    /// let pool = Pool::in_memory()?;
    /// pool.map::<char, ()>("letters")?.insert('x', ())?;
    ///
    /// let (info, words) = pool.open_map_of_words("letters")?;
    /// assert_eq!((info.key, info.value), (Type::Char, Type::Unit));
    /// for record in &words {
    ///     let (key, _) = record?;
    ///     assert_eq!(char::decode(key), Some('x'));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_map_of_words(&self, name: &str) -> Result<(MapInfo, Map<u64, u64>)> {
        let (slot, map) = self.open_as(name, None)?;
        // The open map keeps its catalog entry, so the entry is still that of the map.
        let info = self.map_info(slot).ok_or_else(|| {
            Error::Damaged(format!("the catalog entry of map {name:?} has changed"))
        })?;
        Ok((info, Map::new(map)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Key, Kind, Value};

    #[test]
    fn a_map_of_any_types_opens_as_words_and_typed() {
        for &kind in Kind::all() {
            let pool = Pool::in_memory().unwrap();
            let typed = pool.map_with::<i8, bool>("m", kind).unwrap();
            let (info, words) = pool.open_map_of_words("m").unwrap();
            assert_eq!((info.key, info.value), (Type::I8, Type::Bool));
            assert_eq!((info.name.as_str(), info.kind()), ("m", kind));
            assert!(typed.index().is_same(words.index()), "one map, opened once");
            for key in [i8::MAX, -1, i8::MIN, 0] {
                typed.insert(key, key < 0).unwrap();
                let word = words.get(key.encode().unwrap()).unwrap();
                assert_eq!(word, Some((key < 0).to_word()));
            }
            let keys = words.keys().map(|key| i8::decode(key.unwrap()).unwrap());
            assert!(keys.eq([i8::MIN, -1, 0, i8::MAX]));
            // A word that is no `bool` and one that is no `i8`.
            words.insert(0_i8.encode().unwrap(), 2).unwrap();
            assert!(matches!(typed.get(0), Err(Error::Damaged(_))));
            words.insert(0_i8.encode().unwrap(), 1).unwrap();
            assert_eq!(typed.get(0).unwrap(), Some(true));
            words.insert(7, 1).unwrap();
            assert!(matches!(typed.first(), Err(Error::Damaged(_))));
        }
    }

    #[test]
    fn types_given_at_run_time_are_recorded_and_compared() {
        let pool = Pool::in_memory().unwrap();
        for &key in Type::all().iter().filter(|of| of.can_be_key()) {
            for &value in Type::all() {
                let name = format!("{key} to {value}");
                let made = pool
                    .map_of_words(&name, key, value, Kind::default())
                    .unwrap();
                let (info, found) = pool.open_map_of_words(&name).unwrap();
                assert_eq!((info.key, info.value), (key, value));
                assert!(made.index().is_same(found.index()));
                let other = Type::all().iter().find(|&&of| of != value).unwrap();
                let refused = pool.map_of_words(&name, key, *other, Kind::default());
                match refused {
                    Err(Error::WrongType { found, .. }) => assert_eq!(found, name),
                    other => panic!("{other:?}"),
                }
                drop((made, found));
                pool.drop_map(&name).unwrap();
            }
        }
        let refused = pool.map_of_words("m", Type::Unit, Type::U64, Kind::default());
        assert!(matches!(refused, Err(Error::BadOption(_))));
        let none = pool.open_map_of_words("m");
        assert!(matches!(none, Err(Error::NoSuchMap(_))));
        let typed = pool.map::<u64, u64>("m").unwrap();
        let refused = pool.map_of_words("m", Type::I64, Type::U64, Kind::default());
        assert!(matches!(refused, Err(Error::WrongType { .. })));
        typed.insert(1, 2).unwrap();
        let (_, words) = pool.open_map_of_words("m").unwrap();
        drop(typed);
        assert!(matches!(pool.drop_map("m"), Err(Error::InUse(_))));
        assert_eq!(words.get(1).unwrap(), Some(2));
    }
}
