//! One file per command, or per family of small ones. A command returns whether its exit code is 0.

pub mod crash;
pub mod create;
mod csv_file;
pub mod demo;
pub mod draw;
pub mod inspect;
pub mod kinds;
pub mod load;
pub mod load_shapes;
pub mod places;
pub mod power_cut;
pub mod records;
pub mod spatial;
pub mod torture;
pub mod volatile_disk;

use crate::output::note;
use crate::typed::{TypeName, WIDE_TYPES, type_names};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{
    BytesOptions, Durability, Error, IndexKind, Kind, MapOptions, Pool, PoolOptions, SpatialKind,
    SpatialOptions, StringKind, Type,
};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of commands that may create a pool.
#[derive(Args)]
pub struct PoolArguments {
    /// The pool file.
    pool: PathBuf,
    /// What the pool shall survive: `process`, `power-loss`, or an interval such as `10ms`, after which what was written survives power loss. A pool
    /// that is there promises it from then on. Default: `process` for a new pool; another one keeps what it has, which `stat` shows.
    #[arg(long, value_parser = durability)]
    durability: Option<Durability>,
    /// With `--durability power-loss`: flush and fence, but accept a file that is not on persistent memory (for tests).
    #[arg(long)]
    force_power_loss_protocol: bool,
}

/// [`Durability`] on the command line.
pub fn durability(text: &str) -> Result<Durability, String> {
    let millis = text
        .strip_suffix("ms")
        .and_then(|digits| digits.parse::<u64>().ok());
    match (text, millis) {
        ("process", _) => Ok(Durability::Process),
        ("power-loss", _) => Ok(Durability::PowerLoss),
        // The library would take the nearest interval that a pool can have.
        (_, Some(millis)) if (1..=u32::MAX.into()).contains(&millis) => {
            Ok(Durability::Interval(Duration::from_millis(millis)))
        }
        (_, Some(_)) => Err(format!("an interval is from 1ms to {}ms", u32::MAX)),
        _ => Err("expected process, power-loss, or a number of milliseconds such as 10ms".into()),
    }
}

/// A [`Durability`] as the command line takes it.
pub fn durability_text(durability: Durability) -> String {
    match durability {
        Durability::Process => "process".into(),
        Durability::PowerLoss => "power-loss".into(),
        Durability::Interval(interval) => format!("{}ms", interval.as_millis()),
        other => format!("{other:?}"),
    }
}

impl PoolArguments {
    /// Opens the pool for writing, or creates it, has `work` change the object of this name, and closes the pool. If that fails, a pool
    /// or an object that was not there before is removed again, and a pool that was there promises what it did.
    pub fn change<T>(&self, name: &str, work: impl FnOnce(&Pool) -> Result<T>) -> Result<T> {
        ensure!(
            !self.force_power_loss_protocol || self.durability == Some(Durability::PowerLoss),
            "--force-power-loss-protocol needs --durability power-loss"
        );
        let (pool, is_new_pool) = self.open_or_create()?;
        let is_new = !pool.has_object(name);
        let result = work(&pool);
        match &result {
            Ok(_) => {
                pool.close()?;
                // Also if it seems to have this one: a pool that was forced to flush promises to survive power loss, and has no log.
                if self.durability.is_some() && !is_new_pool {
                    self.change_durability(name, is_new)?;
                }
            }
            // While it is open, and so locked: nobody else can have begun to use it.
            Err(_) if is_new_pool => {
                if let Err(error) = std::fs::remove_file(&self.pool) {
                    let path = self.pool.display();
                    note(format_args!("{path} is left behind: {error}"));
                }
            }
            Err(_) => {
                let removed = match is_new.then(|| pool.drop_object(name)) {
                    None | Some(Err(Error::NoSuchMap(_))) => Ok(()),
                    Some(removed) => removed,
                };
                if let Err(error) = removed.and_then(|()| pool.close()) {
                    note(format_args!("after the error below: {error}"));
                }
            }
        }
        result
    }

    /// Gives the pool, which is closed, the durability that the command line asks for. If its file cannot have it, an object of this name
    /// that is new is removed again. What was added to one that was there cannot be taken back.
    fn change_durability(&self, name: &str, is_new: bool) -> Result<()> {
        let error = match self.options().open(&self.pool) {
            Ok(pool) => return Ok(pool.close()?),
            Err(error) => self.explained(error),
        };
        let path = self.pool.display();
        if !is_new {
            let kept = format!("{name:?} is as asked for, but {path} keeps its durability");
            return Err(error.context(kept));
        }
        let remove = || {
            let pool = Pool::open(&self.pool)?;
            pool.drop_object(name)?;
            pool.close()
        };
        if let Err(again) = remove() {
            note(format_args!("{name:?} is left behind in {path}: {again}"));
        }
        Err(error)
    }

    /// An error of opening or creating the pool. The library names durabilities as programs do.
    fn explained(&self, error: Error) -> anyhow::Error {
        let is_elsewhere = matches!(error, Error::NoPowerLossSafety(_));
        let error = anyhow::Error::from(error);
        if !is_elsewhere {
            return error;
        }
        let path = self.pool.display();
        let asked = self.durability.map_or_else(
            || "the durability that it has".into(),
            |durability| format!("--durability {}", durability_text(durability)),
        );
        error.context(format!(
            "{path} cannot be used with {asked}, and can with --durability process"
        ))
    }

    /// As the command line says.
    fn options(&self) -> PoolOptions {
        let mut options = PoolOptions::new();
        if let Some(durability) = self.durability {
            options.durability(durability);
        }
        options.force_power_loss_protocol(self.force_power_loss_protocol);
        options
    }

    /// The pool, and whether this call has created it. One that is there is opened as it is, if it can be: it gets another durability when the work is done.
    fn open_or_create(&self) -> Result<(Pool, bool)> {
        let failed = |error: &Error, kind| match error {
            Error::Io { source, .. } => source.kind() == kind,
            _ => false,
        };
        let open = || match Pool::open(&self.pool) {
            Err(Error::NoPowerLossSafety(_)) if self.durability.is_some() => {
                self.options().open(&self.pool)
            }
            result => result,
        };
        match open() {
            Err(error) if failed(&error, ErrorKind::NotFound) => {}
            result => return Ok((result.map_err(|error| self.explained(error))?, false)),
        }
        match self.options().create(&self.pool) {
            // Somebody else was faster.
            Err(error) if failed(&error, ErrorKind::AlreadyExists) => match open() {
                // Or what is in the way is no pool.
                Err(again) if failed(&again, ErrorKind::NotFound) => Err(error.into()),
                result => Ok((result?, false)),
            },
            result => Ok((result.map_err(|error| self.explained(error))?, true)),
        }
    }
}

/// What a new map is. Every command that makes maps has this option, and nothing else in the command line knows what there is
/// to choose.
#[derive(Args, Clone)]
pub struct MapArgs {
    #[arg(
        long = "kind",
        value_name = "KIND[,OPTION=VALUE...]",
        default_value_t = MapOptions::default(),
        help = format!("Kind of index of a new map: {}", kinds()),
        long_help = long_help()
    )]
    options: MapOptions,
}

impl MapArgs {
    /// The options of a new map.
    pub fn options(&self) -> MapOptions {
        self.options.clone()
    }
}

/// The types of a new map, for the commands that make maps of any types.
#[derive(Args)]
pub struct TypeArgs {
    #[arg(long, value_parser = TypeName::of_key, help = format!("Type of the keys, u64 if not given: {}; in typed maps also {WIDE_TYPES}", type_names()))]
    key_type: Option<TypeName>,
    /// Type of the values, u64 if not given: one of those of keys but Option and tuples, or unit for a set.
    #[arg(long, value_parser = TypeName::of_value)]
    value_type: Option<TypeName>,
}

impl TypeArgs {
    /// The types of a map of words, unless one of the types is wider.
    pub fn words(&self) -> Option<(Type, Type)> {
        self.words_or((Type::U64, Type::U64))
    }

    /// The types of a map of words, those of the one of this name where the command line says none.
    pub fn words_over(&self, pool: &Pool, name: &str) -> Option<(Type, Type)> {
        let known = pool.maps().into_iter().find(|map| map.name == name);
        self.words_or(known.map_or((Type::U64, Type::U64), |map| (map.key, map.value)))
    }

    fn words_or(&self, (key, value): (Type, Type)) -> Option<(Type, Type)> {
        let word = |said: &Option<TypeName>, known| match said {
            Some(of) => of.word,
            None => Some(known),
        };
        Some((word(&self.key_type, key)?, word(&self.value_type, value)?))
    }

    /// The types of a typed map.
    pub fn names(&self) -> [&str; 2] {
        self.names_over(["u64"; 2])
    }

    /// The types that the command line says, and those of a map that is there where it says none.
    pub fn names_over<'a>(&'a self, [key, value]: [&'a str; 2]) -> [&'a str; 2] {
        [(&self.key_type, key), (&self.value_type, value)]
            .map(|(said, known)| said.as_ref().map_or(known, |of| of.name.as_str()))
    }

    /// Whether the command line says any type.
    pub fn are_given(&self) -> bool {
        self.key_type.is_some() || self.value_type.is_some()
    }

    /// The types of a new map of a kind for byte strings, if it is a typed one: of types that are wider, or that the command line says, where `kind` says
    /// which kind the map is.
    pub fn of_typed(&self, kind: Option<&BytesOptions>) -> Option<[&str; 2]> {
        let is_typed = self.words().is_none() || kind.is_some() && self.are_given();
        is_typed.then(|| self.names())
    }
}

/// What a new object of either family is, for the commands that make both.
#[derive(Args, Clone)]
pub struct ObjectArgs {
    #[arg(
        long = "kind",
        value_name = "KIND[,OPTION=VALUE...]",
        help = format!("Kind of index of a new object; maps: {}; maps of byte strings: {}; spatial indexes: {}", kinds(), string_kinds(), spatial_kinds()),
        long_help = long_help_of_objects()
    )]
    options: Option<ObjectOptions>,
}

impl From<MapArgs> for ObjectArgs {
    fn from(args: MapArgs) -> Self {
        Self {
            options: Some(ObjectOptions::Map(args.options)),
        }
    }
}

/// The options of a new map, of words or of byte strings, or of a new spatial index.
#[derive(Clone)]
enum ObjectOptions {
    Map(MapOptions),
    Spatial(SpatialOptions),
    Strings(BytesOptions),
}

impl std::fmt::Display for ObjectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Map(options) => options.fmt(f),
            Self::Spatial(options) => options.fmt(f),
            Self::Strings(options) => options.fmt(f),
        }
    }
}

impl std::str::FromStr for ObjectOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_map = match text.parse() {
            Ok(options) => return Ok(Self::Map(options)),
            Err(error) => error,
        };
        let of_spatial = match text.parse() {
            Ok(options) => return Ok(Self::Spatial(options)),
            Err(error) => error,
        };
        let of_strings = match text.parse() {
            Ok(options) => return Ok(Self::Strings(options)),
            Err(error) => error,
        };
        let first = text.split(',').next().unwrap_or_default().trim();
        let kind = first.strip_prefix("kind=").unwrap_or(first);
        let is_option = kind.contains('=');
        let is_of_spatial = |name: &str| {
            let default = SpatialKind::default();
            let mut options = default.options().iter();
            options.any(|option| option.name == name)
        };
        // The family that the text names is the one that is explained.
        let is_spatial = match kind.split_once('=') {
            Some((name, _)) => is_of_spatial(name.trim()),
            None => kind.parse::<SpatialKind>().is_ok(),
        };
        Err(if is_spatial {
            of_spatial.to_string()
        } else if kind.parse::<StringKind>().is_ok() {
            of_strings.to_string()
        } else if is_option || kind.parse::<Kind>().is_ok() {
            of_map.to_string()
        } else {
            format!(
                "{of_map}; of maps of byte strings: {}; of spatial indexes: {}",
                string_kinds(),
                spatial_kinds()
            )
        })
    }
}

impl ObjectArgs {
    /// The words of a command line that say the same.
    pub fn words(&self) -> Vec<String> {
        match &self.options {
            None => Vec::new(),
            Some(options) => vec!["--kind".into(), options.to_string()],
        }
    }

    /// What the command line says, or the default kind of map.
    pub fn text(&self) -> String {
        self.options
            .as_ref()
            .map_or_else(|| MapOptions::default().to_string(), ToString::to_string)
    }

    /// The options of a new map; a map that is there has to be as the command line says, unless it says nothing.
    pub fn of_map(&self) -> Result<MapOptions> {
        match &self.options {
            None => Ok(MapOptions::default().accept_any(true)),
            Some(ObjectOptions::Map(options)) => Ok(options.clone()),
            Some(ObjectOptions::Spatial(options)) => bail!(
                "{options} is a spatial index, which has a geometry: say which with --geometry"
            ),
            Some(ObjectOptions::Strings(options)) => {
                bail!("{options} is a map of byte strings, and has no types of keys and values")
            }
        }
    }

    /// The options of a new map of byte strings, if the command line asks for one.
    pub fn of_strings(&self) -> Option<&BytesOptions> {
        match &self.options {
            Some(ObjectOptions::Strings(options)) => Some(options),
            _ => None,
        }
    }

    /// The options of a new typed map, if the command line gives any.
    pub fn of_typed(&self) -> Result<Option<&BytesOptions>> {
        match &self.options {
            Some(ObjectOptions::Map(options)) => {
                bail!(
                    "{options} is for keys and values of at most 8 bytes; --kind slotted is for others"
                )
            }
            Some(ObjectOptions::Spatial(options)) => bail!("{options} is a spatial index"),
            _ => Ok(self.of_strings()),
        }
    }

    /// The options of a new spatial index, `default` if the command line says nothing; then an index that is there may be any.
    pub fn of_spatial(&self, default: SpatialOptions) -> Result<SpatialOptions> {
        match &self.options {
            None => Ok(default.accept_any(true)),
            Some(ObjectOptions::Spatial(options)) => Ok(options.clone()),
            Some(ObjectOptions::Map(options)) => {
                bail!(
                    "{options} is a map; spatial indexes are: {}",
                    spatial_kinds()
                )
            }
            Some(ObjectOptions::Strings(options)) => {
                bail!(
                    "{options} is a map; spatial indexes are: {}",
                    spatial_kinds()
                )
            }
        }
    }

    /// Whether the command line asks for a spatial index.
    pub fn is_spatial(&self) -> bool {
        matches!(self.options, Some(ObjectOptions::Spatial(_)))
    }
}

/// The names of all kinds of spatial index.
fn spatial_kinds() -> String {
    let names: Vec<&str> = SpatialKind::all().iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// The names of all kinds of map of byte strings.
fn string_kinds() -> String {
    let names: Vec<&str> = StringKind::all().iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// Every kind of all families with its options.
fn long_help_of_objects() -> String {
    let default = (Kind::default(), SpatialKind::default());
    format!(
        "Kind of index of a new object, and its options, separated by commas. Default: {} for maps, {} for spatial indexes.\n\nMaps:\n{}\nMaps of byte strings, and of types of more than 8 bytes:\n{}\nSpatial indexes:\n{}",
        default.0,
        default.1,
        help_of_kinds::<Kind>(),
        help_of_kinds::<StringKind>(),
        help_of_kinds::<SpatialKind>()
    )
}

/// The names of all kinds of index.
pub fn kinds() -> String {
    let names: Vec<&str> = Kind::all().iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// Every kind of map with its options.
fn long_help() -> String {
    let kinds = help_of_kinds::<Kind>();
    format!("Kind of index of a new map, and its options, separated by commas.\n{kinds}")
}

fn help_of_kinds<K: IndexKind>() -> String {
    let mut help = String::new();
    for kind in K::all() {
        help.push_str(&format!("\n{kind}: {}\n", kind.description()));
        for option in kind.options() {
            let (name, values, meaning) = (option.name, option.values, option.meaning);
            help.push_str(&format!("    {name}=VALUE  {meaning}: {values}\n"));
        }
    }
    help
}

/// Opens a pool for reading: read-only if it was closed cleanly, otherwise for writing, which recovers it.
pub fn open_to_read(path: &Path) -> Result<Pool> {
    match PoolOptions::new().open_read_only(path) {
        Err(Error::NotClean) => Pool::open(path).with_context(|| {
            format!(
                "{} was not closed, and is opened for writing to be recovered",
                path.display()
            )
        }),
        result => Ok(result?),
    }
}
