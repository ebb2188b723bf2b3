//! Spatial indexes.

use crate::pointers::{elements, options_text, place, room, shared, string, taken, utf8, value};
use crate::pool::PoolHandle;
use crate::status::{Failure, Status, guarded};
use indelible::{Box2, Box3, Geometry, Point2, Point3, Pool, Spatial, SpatialOptions};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Points of the plane, or of longitudes and latitudes.
pub const INDELIBLE_POINT2: u32 = 1;
/// Points of space.
pub const INDELIBLE_POINT3: u32 = 2;
/// Boxes of the plane, or of longitudes and latitudes.
pub const INDELIBLE_BOX2: u32 = 3;
/// Boxes of space.
pub const INDELIBLE_BOX3: u32 = 4;

/// A box by its corners: 48 bytes. A point is a box whose corners are equal.
///
/// With longitudes and latitudes, `low[0]` is the western edge, `low[1]` the southern, `high[0]` the eastern, `high[1]` the northern. Of a
/// geometry with two axes the third numbers are not looked at, and written as 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpatialBox {
    /// The lower corner.
    pub low: [f64; 3],
    /// The upper corner.
    pub high: [f64; 3],
}

/// A record that a search has found: 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpatialRecord {
    /// The point or the box.
    pub shape: SpatialBox,
    /// What is stored beside it.
    pub payload: u64,
    /// Its distance from the point of indelible_spatial_nearest; 0 from other searches.
    pub distance: f64,
}

/// An open spatial index.
pub struct SpatialHandle(Box<dyn AnyIndex>);

impl SpatialHandle {
    /// What is wrong with the index, in words.
    pub(crate) fn check(&self) -> Result<Vec<String>, Failure> {
        self.0.check()
    }
}

/// A spatial index whatever its type of geometry.
trait AnyIndex: Sync {
    fn insert(&self, shape: SpatialBox, payload: u64) -> Result<(), Failure>;
    fn insert_batch(&self, records: &[SpatialRecord]) -> Result<(), Failure>;
    fn bulk_load(&self, records: &[SpatialRecord], fill: f64) -> Result<(), Failure>;
    fn remove(&self, shape: SpatialBox, payload: u64) -> Result<bool, Failure>;
    fn relocate(&self, payload: u64, from: SpatialBox, to: SpatialBox) -> Result<bool, Failure>;
    fn window(&self, window: SpatialBox, contained: bool) -> Result<Vec<SpatialRecord>, Failure>;
    fn nearest(
        &self,
        point: SpatialBox,
        within: f64,
        most: usize,
    ) -> Result<Vec<SpatialRecord>, Failure>;
    fn len(&self) -> Result<u64, Failure>;
    fn check(&self) -> Result<Vec<String>, Failure>;
}

impl SpatialBox {
    /// The shape that is stored.
    fn to_shape<G: Geometry>(self) -> Result<G, Failure> {
        let is_point = G::COORDINATES == G::AXES;
        // Two NaN differ, and the library refuses NaN anyway.
        if is_point && self.low[..G::AXES] != self.high[..G::AXES] {
            return Err(Failure::invalid(
                "the corners of a point are not equal numbers",
            ));
        }
        Ok(self.to_window())
    }

    /// The shape of the corners, as they are.
    fn to_window<G: Geometry>(self) -> G {
        G::from_coordinates(|i| match i.checked_sub(G::AXES) {
            None => self.low[i],
            Some(axis) => self.high[axis],
        })
    }

    fn of<G: Geometry>(shape: &G) -> Self {
        let upper = G::COORDINATES - G::AXES;
        let corner = |first: usize| {
            std::array::from_fn(|axis| {
                if axis < G::AXES {
                    shape.coordinate(first + axis)
                } else {
                    0.0
                }
            })
        };
        Self {
            low: corner(0),
            high: corner(upper),
        }
    }
}

impl SpatialRecord {
    fn of<G: Geometry>(record: &indelible::Record<G>, distance: f64) -> Self {
        Self {
            shape: SpatialBox::of(&record.shape),
            payload: record.payload,
            distance,
        }
    }
}

/// The shapes and payloads of records.
fn to_shapes<G: Geometry>(records: &[SpatialRecord]) -> Result<Vec<(G, u64)>, Failure> {
    let mut shapes = Vec::new();
    shapes
        .try_reserve_exact(records.len())
        .map_err(|error| Failure::invalid(format!("{} records: {error}", records.len())))?;
    for record in records {
        shapes.push((record.shape.to_shape()?, record.payload));
    }
    Ok(shapes)
}

impl<G: Geometry> AnyIndex for Spatial<G> {
    fn insert(&self, shape: SpatialBox, payload: u64) -> Result<(), Failure> {
        Ok(self.insert(shape.to_shape()?, payload)?)
    }

    fn insert_batch(&self, records: &[SpatialRecord]) -> Result<(), Failure> {
        Ok(self.insert_batch(&to_shapes(records)?)?)
    }

    fn bulk_load(&self, records: &[SpatialRecord], fill: f64) -> Result<(), Failure> {
        Ok(self.bulk_load(to_shapes::<G>(records)?, fill)?)
    }

    fn remove(&self, shape: SpatialBox, payload: u64) -> Result<bool, Failure> {
        Ok(self.remove(shape.to_shape()?, payload)?)
    }

    fn relocate(&self, payload: u64, from: SpatialBox, to: SpatialBox) -> Result<bool, Failure> {
        Ok(self.relocate(payload, from.to_shape()?, to.to_shape()?)?)
    }

    fn window(&self, window: SpatialBox, contained: bool) -> Result<Vec<SpatialRecord>, Failure> {
        let found = if contained {
            self.contained_in(window.to_window())?
        } else {
            self.intersecting(window.to_window())?
        };
        Ok(found
            .map(|record| SpatialRecord::of(&record, 0.0))
            .collect())
    }

    fn nearest(
        &self,
        point: SpatialBox,
        within: f64,
        most: usize,
    ) -> Result<Vec<SpatialRecord>, Failure> {
        let nearest = self.nearest(point.to_shape()?)?.within(within)?;
        let found = nearest.take(most).map(|found| {
            let (distance, record) = found?;
            Ok(SpatialRecord::of(&record, distance))
        });
        found.collect()
    }

    fn len(&self) -> Result<u64, Failure> {
        Ok(self.len()?)
    }

    fn check(&self) -> Result<Vec<String>, Failure> {
        Ok(Spatial::check(self)?)
    }
}

/// Opens the spatial index `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
///
/// `geometry` is one of INDELIBLE_POINT2, _POINT3, _BOX2, _BOX3. `options` says how a new index is laid out
/// (`kind=hilbert,coordinates=lonlat`), as for indelible_map_open_with: null or an empty string means the defaults, and
/// opens an index that is there whatever its options are. With `coordinates=lonlat` coordinates are degrees of longitude
/// and latitude, and distances are metres.
///
/// The handle is written to `index` on INDELIBLE_STATUS_OK and to be closed with indelible_spatial_close. An index of
/// another geometry, with other options than asked for, or a map of this name is refused with INDELIBLE_STATUS_REFUSED.
///
/// # Safety
///
/// `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `index` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_open(
    pool: *const PoolHandle,
    name: *const c_char,
    geometry: u32,
    options: *const c_char,
    index: *mut *mut SpatialHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, name, index) = unsafe {
            (
                shared(pool, "pool")?,
                utf8(string(name, "name")?, "name")?,
                place(index, "index")?,
            )
        };
        // SAFETY: the caller's, word for word.
        let text = unsafe { options_text(options)? };
        let options = text
            .parse::<SpatialOptions>()?
            .accept_any(text.trim().is_empty());
        let opened = match geometry {
            INDELIBLE_POINT2 => opened::<Point2>(&pool.0, name, options),
            INDELIBLE_POINT3 => opened::<Point3>(&pool.0, name, options),
            INDELIBLE_BOX2 => opened::<Box2>(&pool.0, name, options),
            INDELIBLE_BOX3 => opened::<Box3>(&pool.0, name, options),
            other => Err(Failure::invalid(format!("there is no geometry {other}"))),
        };
        index.write(Box::into_raw(Box::new(opened?)));
        Ok(Status::Ok)
    })
}

fn opened<G: Geometry>(
    pool: &Pool,
    name: &str,
    options: SpatialOptions,
) -> Result<SpatialHandle, Failure> {
    let index = pool.spatial_with::<G>(name, options)?;
    Ok(SpatialHandle(Box::new(index)))
}

/// Closes a spatial index.
///
/// # Safety
///
/// `index` came from indelible_spatial_open, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_close(index: *mut SpatialHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(index, "index")? });
        Ok(Status::Ok)
    })
}

/// Adds a record, also if there is an equal one. INDELIBLE_STATUS_INVALID: a coordinate is NaN or off the globe, a lower
/// edge lies above the upper one, or the corners of a point differ. When the call returns, the change is as durable as the
/// pool promises; so it is with the other calls that change something.
///
/// # Safety
///
/// `index` is open; `shape` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_insert(
    index: *const SpatialHandle,
    shape: *const SpatialBox,
    payload: u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, shape) = unsafe { (shared(index, "index")?, value(shape, "shape")?) };
        index.0.insert(shape, payload)?;
        Ok(Status::Ok)
    })
}

/// Adds `count` records; their distances are not looked at. Takes less time than single inserts if many records lie close
/// together, since those of one leaf are made durable together.
///
/// If any of the shapes is refused with INDELIBLE_STATUS_INVALID, nothing is added. After another failure, and while the call
/// lasts, any part of the records may be there; when it returns INDELIBLE_STATUS_OK, all are durable.
///
/// # Safety
///
/// `index` is open; `count` records can be read from `records`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_insert_batch(
    index: *const SpatialHandle,
    records: *const SpatialRecord,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, records) = unsafe {
            (
                shared(index, "index")?,
                elements(records, count, "records")?,
            )
        };
        index.0.insert_batch(records)?;
        Ok(Status::Ok)
    })
}

/// Fills the empty index with `count` records in any order, in one atomic step; their distances are not looked at. `fill`, from 0.1
/// to 1, is the share of each leaf that is used; 0.7 leaves room for inserts. Much faster than inserts.
///
/// Returns INDELIBLE_STATUS_NOT_EMPTY if the index has records, and INDELIBLE_STATUS_INVALID for shapes that indelible_spatial_insert
/// refuses. After any other failure, or a crash, the index is empty.
///
/// # Safety
///
/// `index` is open; `count` records can be read from `records`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_bulk_load(
    index: *const SpatialHandle,
    records: *const SpatialRecord,
    count: usize,
    fill: f64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, records) = unsafe {
            (
                shared(index, "index")?,
                elements(records, count, "records")?,
            )
        };
        index.0.bulk_load(records, fill)?;
        Ok(Status::Ok)
    })
}

/// Removes one record with this shape and this payload, or returns INDELIBLE_STATUS_ABSENT if there is none.
///
/// # Safety
///
/// `index` is open; `shape` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_remove(
    index: *const SpatialHandle,
    shape: *const SpatialBox,
    payload: u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, shape) = unsafe { (shared(index, "index")?, value(shape, "shape")?) };
        Ok(Status::ok_if(index.0.remove(shape, payload)?))
    })
}

/// Moves one record with this payload from one shape to another, in one atomic step, or returns INDELIBLE_STATUS_ABSENT
/// and changes nothing if there is none.
///
/// Other threads see the record in one of the two places, never in both; after a crash it is in one of them.
///
/// # Safety
///
/// `index` is open; `from` and `to` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_relocate(
    index: *const SpatialHandle,
    payload: u64,
    from: *const SpatialBox,
    to: *const SpatialBox,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, from, to) = unsafe {
            (
                shared(index, "index")?,
                value(from, "from")?,
                value(to, "to")?,
            )
        };
        Ok(Status::ok_if(index.0.relocate(payload, from, to)?))
    })
}

/// Finds the records that have a point in common with `window`, edges included, in no particular order. Copies at most
/// `capacity` of them to `records`, and writes to `count` how many there are: if that is more than `capacity`, ask again
/// with more room. Edges of the window may be infinite. A window of longitudes whose western edge is east of its eastern
/// one crosses the antimeridian.
///
/// INDELIBLE_STATUS_INVALID: an edge is NaN, a lower edge lies above the upper one (longitudes may), a latitude is off the globe, or a
/// longitude is outside of -360 to 360. On failure nothing is written.
///
/// # Safety
///
/// `index` is open; `window` can be read; `capacity` records can be written to `records`, and `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_intersecting(
    index: *const SpatialHandle,
    window: *const SpatialBox,
    records: *mut SpatialRecord,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { in_window(index, window, false, records, capacity, count) }
    })
}

/// As indelible_spatial_intersecting, but finds the records that lie in `window` with all of their points.
///
/// # Safety
///
/// As for indelible_spatial_intersecting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_contained(
    index: *const SpatialHandle,
    window: *const SpatialBox,
    records: *mut SpatialRecord,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { in_window(index, window, true, records, capacity, count) }
    })
}

/// # Safety
///
/// As for indelible_spatial_intersecting.
unsafe fn in_window(
    index: *const SpatialHandle,
    window: *const SpatialBox,
    contained: bool,
    records: *mut SpatialRecord,
    capacity: usize,
    count: *mut usize,
) -> Result<Status, Failure> {
    // SAFETY: the caller's, word for word.
    let (index, window, records, count) = unsafe {
        (
            shared(index, "index")?,
            value(window, "window")?,
            room(records, capacity, "records")?,
            place(count, "count")?,
        )
    };
    let found = index.0.window(window, contained)?;
    copy(&found, records);
    count.write(found.len());
    Ok(Status::Ok)
}

/// Copies the records nearest to `point`, a box whose corners are equal, to `records` in the order of their distances, at
/// most `capacity` of them, and their number to `count`. `within` is the greatest distance, INFINITY for any; distances are
/// in the unit of the coordinates, or in metres with `coordinates=lonlat`.
///
/// INDELIBLE_STATUS_INVALID: a coordinate is NaN or off the globe, the corners of `point` differ, or `within` is NaN or negative. On
/// failure nothing is written.
///
/// # Safety
///
/// `index` is open; `point` can be read; `capacity` records can be written to `records`, and `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_nearest(
    index: *const SpatialHandle,
    point: *const SpatialBox,
    within: f64,
    records: *mut SpatialRecord,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, point, records, count) = unsafe {
            (
                shared(index, "index")?,
                value(point, "point")?,
                room(records, capacity, "records")?,
                place(count, "count")?,
            )
        };
        let found = index.0.nearest(point, within, capacity)?;
        copy(&found, records);
        count.write(found.len());
        Ok(Status::Ok)
    })
}

/// Copies as many records as there is room for.
fn copy(found: &[SpatialRecord], records: &mut [MaybeUninit<SpatialRecord>]) {
    for (room, record) in records.iter_mut().zip(found) {
        room.write(*record);
    }
}

/// Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others
/// take no time.
///
/// # Safety
///
/// `index` is open; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_len(
    index: *const SpatialHandle,
    count: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (index, count) = unsafe { (shared(index, "index")?, place(count, "count")?) };
        count.write(index.0.len()?);
        Ok(Status::Ok)
    })
}
