//! What can be chosen about a Hilbert index.

use crate::engines::{EngineOptions, OptionBytes, OptionInfo, SpatialEngineOptions};
use crate::pool::OPTION_BYTES;
use crate::spatial::{Coordinates, Geometry, MAX_AXES, MAX_COORDINATES, Rect};
use crate::{Error, Result};

/// How a new Hilbert index is laid out.
///
/// Records are ordered by a grid that is laid over an *extent*. The extent changes no answer: what lies outside is found too, and only
/// takes longer if much lies there. It is declared with [`extent`](Self::extent); without a declaration the index learns it from
/// the first records: when the first leaf splits, and again when there are 8 and 64 leaves, at which it may write these leaves anew.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Box2, HilbertOptions, Point2, Pool};
/// let pool = Pool::in_memory()?;
/// let floor = Box2::new(Point2::new(0.0, 0.0), Point2::new(80.0, 25.0));
/// let desks = pool.spatial_with::<Point2>("desks", HilbertOptions::default().extent(floor))?;
/// let shops = pool.spatial_with::<Point2>("shops", HilbertOptions::default().lonlat())?;
/// assert_eq!(desks.options().to_string(), "kind=hilbert,extent=0:0:80:25");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HilbertOptions {
    coordinates: Coordinates,
    extent: Option<Extent>,
}

/// A declared extent, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Extent {
    axes: usize,
    low: [f32; MAX_AXES],
    high: [f32; MAX_AXES],
}

impl HilbertOptions {
    /// Declares where nearly all records will lie: a [`Box2`](crate::Box2) for geometries with two axes, a [`Box3`](crate::Box3) for those
    /// with three. Default: learned from the records; for longitudes and latitudes, the whole globe.
    ///
    /// The edges are rounded to `f32`. They have to be finite then, and the box wider than nothing on each axis: otherwise the index cannot be
    /// created.
    #[must_use]
    pub fn extent(mut self, extent: impl Geometry) -> Self {
        self.extent = Some(Extent::around(&extent));
        self
    }

    /// Says that coordinates are degrees: longitudes (`x`, from −180 to 180) and latitudes (`y`, from −90 to 90). For geometries with two
    /// axes. Default: coordinates are positions in the plane or in space.
    ///
    /// Distances are then in metres on the sphere, and windows may cross the antimeridian.
    #[must_use]
    pub fn lonlat(mut self) -> Self {
        self.coordinates = Coordinates::LonLat;
        self
    }

    /// The extent of the grid, the lower corner and then the upper one, unless it has to be learned.
    pub(super) fn corners(&self) -> Option<[f64; MAX_COORDINATES]> {
        let rect = match &self.extent {
            Some(extent) => extent.rect(),
            None => self.coordinates.extent()?,
        };
        let ([a, b, c], [d, e, f]) = (rect.low, rect.high);
        Some([a, b, c, d, e, f])
    }
}

impl Extent {
    fn around(shape: &impl Geometry) -> Self {
        fn axes_of<G: Geometry>(_: &G) -> usize {
            G::AXES
        }
        let rect = Rect::of(shape);
        Self {
            axes: axes_of(shape),
            low: rect.low.map(rounded),
            high: rect.high.map(rounded),
        }
    }

    fn rect(&self) -> Rect {
        Rect {
            low: self.low.map(f64::from),
            high: self.high.map(f64::from),
        }
    }

    fn is_sound(&self, coordinates: Coordinates) -> bool {
        let is_wide = |axis: usize| {
            self.low[axis].is_finite()
                && self.high[axis].is_finite()
                && self.low[axis] < self.high[axis]
        };
        let fits = coordinates
            .extent()
            .is_none_or(|world| self.axes == 2 && world.contains(&self.rect()));
        (0..self.axes).all(is_wide) && fits
    }
}

/// The nearest `f32`, without the sign of a negative zero. The text of an extent is rounded in the same way, so that it is read as it is
/// written.
fn rounded(edge: f64) -> f32 {
    edge as f32 + 0.0
}

/// What the fifth word of the options is if the extent has not three axes: the bits of a NaN, which no edge has, and flags.
const FLAGS: u32 = 0x7fc0_0000;
/// Flag: coordinates are longitudes and latitudes.
const LON_LAT: u32 = 1;
/// Flag: the first four words are an extent.
const HAS_EXTENT: u32 = 2;

impl EngineOptions for HilbertOptions {
    const FORMAT: u32 = 1;

    const LIST: &'static [OptionInfo] = &[
        OptionInfo::new(
            "extent",
            "auto, or the lower and the upper corner: X:Y:X:Y or X:Y:Z:X:Y:Z",
            "where nearly all records will lie",
        ),
        OptionInfo::new(
            "coordinates",
            Coordinates::VALUES,
            "what coordinates mean: positions, or degrees of longitude and latitude",
        ),
    ];

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if name == "extent" {
            self.extent = parse_extent(value)?;
            return Ok(());
        }
        self.coordinates = Coordinates::parse(value)?;
        Ok(())
    }

    fn get(&self, name: &str) -> String {
        if name == "coordinates" {
            return self.coordinates.name().into();
        }
        let Some(extent) = &self.extent else {
            return "auto".into();
        };
        let edges = extent.low[..extent.axes].iter();
        let edges = edges.chain(&extent.high[..extent.axes]);
        let edges: Vec<String> = edges.map(f32::to_string).collect();
        edges.join(":")
    }

    /// ```text
    /// +0   x low, y low, x high, y high: f32; zero without an extent
    /// +16  z low, z high: f32; with two axes or without an extent: FLAGS and the flags, 0
    /// ```
    ///
    /// All zero: the defaults.
    fn encode(&self) -> Result<OptionBytes> {
        let mut words = [0_u32; OPTION_BYTES / 4];
        if let Some(extent) = &self.extent {
            if !extent.is_sound(self.coordinates) {
                return Err(Error::BadOption(format!(
                    "extent={}: the lower corner has to be below the upper one on each axis, all edges finite, and longitudes and latitudes \
                     on the globe",
                    self.get("extent")
                )));
            }
            let (low, high) = (&extent.low, &extent.high);
            words = [low[0], low[1], high[0], high[1], low[2], high[2]].map(f32::to_bits);
        }
        let three = self.extent.is_some_and(|extent| extent.axes == 3);
        if !three && *self != Self::default() {
            let lon_lat = u32::from(self.coordinates == Coordinates::LonLat) * LON_LAT;
            let has_extent = u32::from(self.extent.is_some()) * HAS_EXTENT;
            (words[4], words[5]) = (FLAGS | lon_lat | has_extent, 0);
        }
        let mut bytes = OptionBytes::default();
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let mut words = [0_u32; OPTION_BYTES / 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut options = Self::default();
        let flags = words[4] ^ FLAGS;
        let is_flags = flags <= LON_LAT | HAS_EXTENT;
        if is_flags && flags & LON_LAT != 0 {
            options.coordinates = Coordinates::LonLat;
        }
        if words != [0; OPTION_BYTES / 4] && (!is_flags || flags & HAS_EXTENT != 0) {
            let [a, b, c, d, e, f] = words.map(f32::from_bits);
            let (axes, z) = if is_flags { (2, [0.0; 2]) } else { (3, [e, f]) };
            options.extent = Some(Extent {
                axes,
                low: [a, b, z[0]],
                high: [c, d, z[1]],
            });
        }
        match options.encode() {
            Ok(known) if known == *bytes => Ok(options),
            _ => Err(Error::Damaged("the options of a Hilbert index".into())),
        }
    }

    fn extremes() -> Vec<Self> {
        let texts: [&[(&str, &str)]; 6] = [
            &[("coordinates", "lonlat")],
            &[("coordinates", "lonlat"), ("extent", "-10:-90:180:0.1")],
            &[("extent", "-180:-90:180:90")],
            &[("extent", "-3.4028235e38:-1e-45:3.4028235e38:1e-45")],
            &[("extent", "0:0:0:1:1:1")],
            &[("extent", "-1:0:-3e38:1e-45:2.5:3e38")],
        ];
        let parse = |text: &[(&str, &str)]| {
            let mut options = Self::default();
            let all = text
                .iter()
                .try_for_each(|(name, value)| options.set(name, value));
            all.map(|()| options).ok()
        };
        texts.into_iter().filter_map(parse).collect()
    }
}

impl SpatialEngineOptions for HilbertOptions {
    fn coordinates(&self) -> Coordinates {
        self.coordinates
    }

    fn expect_axes(&self, axes: usize) -> Result<()> {
        let of_extent = self.extent.map_or(axes, |extent| extent.axes);
        if of_extent != axes {
            return Err(Error::BadOption(format!(
                "extent={}: the geometries have {axes} axes",
                self.get("extent")
            )));
        }
        self.coordinates.expect_axes(axes)
    }
}

/// `auto`, or corners as [`HilbertOptions::get`] writes them.
fn parse_extent(text: &str) -> Result<Option<Extent>> {
    if text == "auto" {
        return Ok(None);
    }
    let edges: Option<Vec<f64>> = text.split(':').map(|edge| edge.parse().ok()).collect();
    let edges = edges.filter(|edges| [MAX_COORDINATES - 2, MAX_COORDINATES].contains(&edges.len()));
    let Some(edges) = edges else {
        return Err(Error::BadOption(format!(
            "extent={text}: neither auto nor the four or six edges of a box"
        )));
    };
    let axes = edges.len() / 2;
    let mut extent = Extent {
        axes,
        low: [0.0; MAX_AXES],
        high: [0.0; MAX_AXES],
    };
    for axis in 0..axes {
        extent.low[axis] = rounded(edges[axis]);
        extent.high[axis] = rounded(edges[axis + axes]);
    }
    Ok(Some(extent))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Box2, Box3, Point2, Point3};

    #[test]
    fn extents_are_rounded_and_read_as_they_are_written() {
        let corner = |x| Point2::new(x, 0.1);
        let options =
            HilbertOptions::default().extent(Box2::new(corner(-0.1), Point2::new(0.3, 0.7)));
        let [west, south, _, east, north, _] = options.corners().unwrap();
        let edges = [west, south, east, north].map(|edge| edge as f32);
        assert_eq!(edges, [-0.1, 0.1, 0.3, 0.7]);
        let text = EngineOptions::get(&options, "extent");
        assert_eq!(text, "-0.1:0.1:0.3:0.7");
        let mut read = HilbertOptions::default();
        read.set("extent", &text).unwrap();
        assert_eq!(read, options);
    }

    #[test]
    fn all_extremes_are_options_and_none_that_cannot_be_is_encoded() {
        assert_eq!(HilbertOptions::extremes().len(), 6);
        let default = HilbertOptions::default();
        assert_eq!(default.encode().unwrap(), OptionBytes::default());
        let (origin, one) = (Point2::default(), Point2::new(1.0, 1.0));
        for bad in [
            default.extent(origin),
            default.extent(Box2::new(one, origin)),
            default.extent(Box2::new(origin, Point2::new(f64::INFINITY, 1.0))),
            default.extent(Box2::new(origin, Point2::new(1e39, 1.0))),
            default.extent(Box2::new(Point2::new(f64::NAN, 0.0), one)),
            default.extent(Box2::new(origin, Point2::new(f64::NAN, 1.0))),
            default
                .lonlat()
                .extent(Box2::new(origin, Point2::new(181.0, 1.0))),
            default
                .lonlat()
                .extent(Box3::new(Point3::default(), Point3::new(1.0, 1.0, 1.0))),
        ] {
            assert!(matches!(bad.encode(), Err(Error::BadOption(_))), "{bad:?}");
        }
        let world = default.lonlat().corners();
        assert_eq!(world, Some([-180.0, -90.0, 0.0, 180.0, 90.0, 0.0]));
    }
}
