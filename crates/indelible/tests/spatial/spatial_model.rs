//! A spatial index by brute force: a list of records, in which every search looks at all of them. It shares no code with the library.

#![allow(dead_code, reason = "each test uses a part of it")]

use indelible::Geometry;

/// The mean radius of the earth in metres.
pub const EARTH: f64 = 6_371_008.8;

/// The lower and the upper corner of a geometry or of a window; zero on a third axis that it has not.
pub fn corners<G: Geometry>(shape: &G) -> [[f64; 3]; 2] {
    let from = |first: usize| {
        let mut corner = [0.0; 3];
        for (axis, edge) in corner.iter_mut().take(G::AXES).enumerate() {
            *edge = shape.coordinate(first + axis);
        }
        corner
    };
    [from(0), from(G::COORDINATES - G::AXES)]
}

pub fn intersects<A: Geometry, B: Geometry>(a: &A, b: &B) -> bool {
    let ([a_low, a_high], [b_low, b_high]) = (corners(a), corners(b));
    (0..A::AXES).all(|axis| a_low[axis] <= b_high[axis] && b_low[axis] <= a_high[axis])
}

pub fn contains<A: Geometry, B: Geometry>(outer: &A, inner: &B) -> bool {
    let ([low, high], [inner_low, inner_high]) = (corners(outer), corners(inner));
    (0..A::AXES).all(|axis| low[axis] <= inner_low[axis] && inner_high[axis] <= high[axis])
}

/// The Euclidean distance, without overflow and underflow on the way.
pub fn distance<P: Geometry, G: Geometry>(point: &P, shape: &G) -> f64 {
    let ([centre, _], [low, high]) = (corners(point), corners(shape));
    let off = |axis: usize| {
        if low[axis] <= centre[axis] && centre[axis] <= high[axis] {
            return 0.0;
        }
        (low[axis] - centre[axis]).max(centre[axis] - high[axis])
    };
    let offs: Vec<f64> = (0..P::AXES).map(off).collect();
    let largest = offs.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 || largest.is_infinite() {
        return largest;
    }
    if (1e-100..1e100).contains(&largest) {
        // Exact for whole numbers.
        return offs.iter().map(|off| off * off).sum::<f64>().sqrt();
    }
    let squares = offs.iter().map(|off| (off / largest).powi(2));
    largest * squares.sum::<f64>().sqrt()
}

/// The distance in metres between two places, each a longitude and a latitude: by the vectors to them, which is good for all distances.
pub fn metres(from: [f64; 2], to: [f64; 2]) -> f64 {
    let vector = |[lon, lat]: [f64; 2]| {
        let (lon, lat) = (lon.to_radians(), lat.to_radians());
        [lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()]
    };
    let (a, b) = (vector(from), vector(to));
    let cross = [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ];
    let sine = cross.iter().map(|c| c * c).sum::<f64>().sqrt();
    let cosine = a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>();
    EARTH * sine.atan2(cosine)
}

/// Bounds of the distance in metres from a place to a point or a box of longitudes and latitudes: by places all along the edges.
pub fn metres_to<G: Geometry>(from: [f64; 2], shape: &G) -> [f64; 2] {
    const STEPS: u32 = 360;
    let [[west, south, _], [east, north, _]] = corners(shape);
    let [lon, lat] = from;
    // Longitudes that differ by 360 degrees are one.
    let is_between = |lon: f64| (west..=east).contains(&lon);
    let inside = [lon - 360.0, lon, lon + 360.0].into_iter().any(is_between);
    if inside && (south..=north).contains(&lat) {
        return [0.0, 0.0];
    }
    let along = |low: f64, high: f64, step: u32| {
        let share = f64::from(step) / f64::from(STEPS);
        (low + (high - low) * share).clamp(low, high)
    };
    let mut least = f64::INFINITY;
    for step in 0..=STEPS {
        let (x, y) = (along(west, east, step), along(south, north, step));
        for place in [[x, south], [x, north], [west, y], [east, y]] {
            least = least.min(metres(from, place));
        }
    }
    let longest_edge = (east - west).max(north - south).to_radians() * EARTH;
    let between = longest_edge / f64::from(STEPS) / 2.0;
    [
        (least - between) * (1.0 - 1e-9) - 1e-3,
        least * (1.0 + 1e-9) + 1e-3,
    ]
}

/// A spatial index.
#[derive(Clone, Debug)]
pub struct Model<G> {
    pub records: Vec<(G, u64)>,
}

impl<G> Default for Model<G> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
        }
    }
}

impl<G: Geometry> Model<G> {
    pub fn insert(&mut self, shape: G, payload: u64) {
        // As it is stored: without negative zeros.
        let stored = G::from_coordinates(|i| shape.coordinate(i) + 0.0);
        self.records.push((stored, payload));
    }

    pub fn remove(&mut self, shape: G, payload: u64) -> bool {
        let found = self.records.iter().position(|of| *of == (shape, payload));
        found.map(|at| self.records.swap_remove(at)).is_some()
    }

    pub fn relocate(&mut self, payload: u64, from: G, to: G) -> bool {
        let is_there = self.remove(from, payload);
        if is_there {
            self.insert(to, payload);
        }
        is_there
    }

    pub fn matching(&self, accepts: impl Fn(&G) -> bool) -> Vec<(G, u64)> {
        let records = self.records.iter().copied();
        records.filter(|(shape, _)| accepts(shape)).collect()
    }

    pub fn bounds(&self) -> Option<[[f64; 3]; 2]> {
        let all = self.records.iter().map(|(shape, _)| corners(shape));
        all.reduce(|[low, high], [other_low, other_high]| {
            let axis = |i: usize| (low[i].min(other_low[i]), high[i].max(other_high[i]));
            let [a, b, c] = [axis(0), axis(1), axis(2)];
            [[a.0, b.0, c.0], [a.1, b.1, c.1]]
        })
    }
}

/// Records in an order of their own, to compare sets of them.
pub fn sorted<G: Geometry>(records: impl IntoIterator<Item = (G, u64)>) -> Vec<(G, u64)> {
    let mut records: Vec<(G, u64)> = records.into_iter().collect();
    records.sort_by(compare);
    records
}

/// By payload, then by coordinates.
pub fn compare<G: Geometry>(a: &(G, u64), b: &(G, u64)) -> std::cmp::Ordering {
    let coordinates = |i: usize| a.0.coordinate(i).total_cmp(&b.0.coordinate(i));
    let mut orders = (0..G::COORDINATES).map(coordinates);
    let of_shapes = orders.find(|order| order.is_ne());
    a.1.cmp(&b.1)
        .then(of_shapes.unwrap_or(std::cmp::Ordering::Equal))
}
