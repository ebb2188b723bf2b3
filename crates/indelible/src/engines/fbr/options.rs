//! What can be chosen about an FBR-tree.

use crate::engines::{EngineOptions, OptionBytes, OptionInfo, SpatialEngineOptions};
use crate::spatial::Coordinates;
use crate::{Error, Result};

/// How a new FBR-tree is laid out.
///
/// The FBR-tree is a published index, here to be compared with; see [`SpatialKind::Fbr`](crate::SpatialKind::Fbr).
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{FbrOptions, Point2, Pool};
/// let pool = Pool::in_memory()?;
/// let shops = pool.spatial_with::<Point2>("shops", FbrOptions::default().flush_leaves_only())?;
/// assert_eq!(shops.options().to_string(), "kind=fbr,flush=leaves");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FbrOptions {
    coordinates: Coordinates,
    pub(super) flush: Flush,
}

/// Which nodes are flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flush {
    #[default]
    All,
    Leaves,
}

impl FbrOptions {
    /// Flushes leaves only. After a crash the open reads all leaves and builds the inner nodes anew. Default: all nodes are flushed.
    #[must_use]
    pub fn flush_leaves_only(mut self) -> Self {
        self.flush = Flush::Leaves;
        self
    }

    /// Says that coordinates are degrees: longitudes (`x`, from −180 to 180) and latitudes (`y`, from −90 to 90). For geometries with two
    /// axes. Default: coordinates are positions in the plane or in space.
    #[must_use]
    pub fn lonlat(mut self) -> Self {
        self.coordinates = Coordinates::LonLat;
        self
    }
}

impl EngineOptions for FbrOptions {
    const FORMAT: u32 = 1;

    const LIST: &'static [OptionInfo] = &[
        OptionInfo::new(
            "flush",
            "all or leaves",
            "which nodes are flushed; with leaves, a crash costs the inner nodes",
        ),
        OptionInfo::new(
            "coordinates",
            Coordinates::VALUES,
            "what coordinates mean: positions, or degrees of longitude and latitude",
        ),
    ];

    const IS_EXAMPLE: bool = true;

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if name == "coordinates" {
            self.coordinates = Coordinates::parse(value)?;
            return Ok(());
        }
        self.flush = match value {
            "all" => Flush::All,
            "leaves" => Flush::Leaves,
            _ => {
                return Err(Error::BadOption(format!(
                    "flush={value}: known are all and leaves"
                )));
            }
        };
        Ok(())
    }

    fn get(&self, name: &str) -> String {
        if name == "coordinates" {
            return self.coordinates.name().into();
        }
        match self.flush {
            Flush::All => "all",
            Flush::Leaves => "leaves",
        }
        .into()
    }

    /// ```text
    /// +0   1 if only leaves are flushed, else 0
    /// +1   1 if coordinates are longitudes and latitudes, else 0
    /// +2   zero
    /// ```
    fn encode(&self) -> Result<OptionBytes> {
        let mut bytes = OptionBytes::default();
        bytes[0] = u8::from(self.flush == Flush::Leaves);
        bytes[1] = u8::from(self.coordinates == Coordinates::LonLat);
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let all = [Self::default()].into_iter().chain(Self::extremes());
        let encoded = |options: &Self| options.encode().is_ok_and(|known| known == *bytes);
        let mut known = all.filter(encoded);
        known
            .next()
            .ok_or_else(|| Error::Damaged("the options of an FBR-tree".into()))
    }

    fn extremes() -> Vec<Self> {
        let leaves = Self::default().flush_leaves_only();
        vec![leaves, leaves.lonlat(), Self::default().lonlat()]
    }
}

impl SpatialEngineOptions for FbrOptions {
    fn coordinates(&self) -> Coordinates {
        self.coordinates
    }

    fn expect_axes(&self, axes: usize) -> Result<()> {
        self.coordinates.expect_axes(axes)
    }
}
