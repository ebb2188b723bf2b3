//! What can be chosen about a PM-RTree.

use crate::engines::{EngineOptions, OptionBytes, OptionInfo, SpatialEngineOptions};
use crate::spatial::Coordinates;
use crate::{Error, Result};

/// How a new PM-RTree is laid out.
///
/// The PM-RTree is a published index, here to be compared with; see [`SpatialKind::PmRtree`](crate::SpatialKind::PmRtree).
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{PmRtreeOptions, Point2, Pool};
/// let pool = Pool::in_memory()?;
/// let shops = pool.spatial_with::<Point2>("shops", PmRtreeOptions::default().lonlat())?;
/// assert_eq!(shops.options().to_string(), "kind=pm-rtree,coordinates=lonlat");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmRtreeOptions {
    coordinates: Coordinates,
}

impl PmRtreeOptions {
    /// Says that coordinates are degrees: longitudes (`x`, from −180 to 180) and latitudes (`y`, from −90 to 90). For geometries with two
    /// axes. Default: coordinates are positions in the plane or in space.
    #[must_use]
    pub fn lonlat(mut self) -> Self {
        self.coordinates = Coordinates::LonLat;
        self
    }
}

impl EngineOptions for PmRtreeOptions {
    const FORMAT: u32 = 1;

    const LIST: &'static [OptionInfo] = &[OptionInfo::new(
        "coordinates",
        Coordinates::VALUES,
        "what coordinates mean: positions, or degrees of longitude and latitude",
    )];

    const IS_EXAMPLE: bool = true;

    fn set(&mut self, _: &str, value: &str) -> Result<()> {
        self.coordinates = Coordinates::parse(value)?;
        Ok(())
    }

    fn get(&self, _: &str) -> String {
        self.coordinates.name().into()
    }

    /// ```text
    /// +0   1 if coordinates are longitudes and latitudes, else 0
    /// +1   zero
    /// ```
    fn encode(&self) -> Result<OptionBytes> {
        let mut bytes = OptionBytes::default();
        bytes[0] = u8::from(self.coordinates == Coordinates::LonLat);
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let all = [Self::default()].into_iter().chain(Self::extremes());
        let encoded = |options: &Self| options.encode().is_ok_and(|known| known == *bytes);
        let mut known = all.filter(encoded);
        known
            .next()
            .ok_or_else(|| Error::Damaged("the options of a PM-RTree".into()))
    }

    fn extremes() -> Vec<Self> {
        vec![Self::default().lonlat()]
    }
}

impl SpatialEngineOptions for PmRtreeOptions {
    fn coordinates(&self) -> Coordinates {
        self.coordinates
    }

    fn expect_axes(&self, axes: usize) -> Result<()> {
        self.coordinates.expect_axes(axes)
    }
}
