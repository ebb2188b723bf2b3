//! Every function of spatial indexes, as C calls it.

use crate::tests::{in_memory, last_error};
use crate::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

fn point(x: f64, y: f64) -> SpatialBox {
    rect(x, y, x, y)
}

fn rect(west: f64, south: f64, east: f64, north: f64) -> SpatialBox {
    SpatialBox {
        low: [west, south, 0.0],
        high: [east, north, 0.0],
    }
}

const NOTHING: SpatialRecord = SpatialRecord {
    shape: SpatialBox {
        low: [-1.0; 3],
        high: [-1.0; 3],
    },
    payload: 99,
    distance: -1.0,
};

fn open(
    pool: *const PoolHandle,
    name: &CStr,
    geometry: u32,
    options: Option<&CStr>,
) -> (Status, *mut SpatialHandle) {
    let mut index = null_mut();
    let options = options.map_or(null(), CStr::as_ptr);
    // SAFETY: an open pool, strings or null, and a local variable to write to.
    let status =
        unsafe { indelible_spatial_open(pool, name.as_ptr(), geometry, options, &mut index) };
    (status, index)
}

fn opened(
    pool: *const PoolHandle,
    name: &CStr,
    geometry: u32,
    options: &CStr,
) -> *mut SpatialHandle {
    let (status, index) = open(pool, name, geometry, Some(options));
    assert_eq!(status, Status::Ok, "{}", last_error());
    index
}

fn close(pool: *mut PoolHandle, index: *mut SpatialHandle) {
    // SAFETY: both are open and not used again.
    unsafe {
        assert_eq!(indelible_spatial_close(index), Status::Ok);
        assert_eq!(indelible_pool_close(pool), Status::Ok, "{}", last_error());
    }
}

fn insert(index: *const SpatialHandle, shape: SpatialBox, payload: u64) -> Status {
    // SAFETY: the index is open, and the shape is a local variable.
    unsafe { indelible_spatial_insert(index, &shape, payload) }
}

/// The payloads in a window, sorted.
fn payloads(index: *const SpatialHandle, window: SpatialBox, contained: bool) -> Vec<u64> {
    let mut records = [NOTHING; 16];
    let mut count = 0;
    let search = if contained {
        indelible_spatial_contained
    } else {
        indelible_spatial_intersecting
    };
    // SAFETY: the index is open, there is room for 16 records, and the rest are local variables.
    let status = unsafe { search(index, &window, records.as_mut_ptr(), 16, &mut count) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    let mut payloads: Vec<u64> = records[..count]
        .iter()
        .map(|record| record.payload)
        .collect();
    payloads.sort_unstable();
    payloads
}

#[test]
fn records_are_added_found_moved_and_removed() {
    let pool = in_memory();
    let index = opened(pool, c"parks", INDELIBLE_BOX2, c"");
    assert_eq!(insert(index, rect(0.0, 0.0, 3.0, 3.0), 10), Status::Ok);
    assert_eq!(insert(index, rect(4.0, 4.0, 5.0, 5.0), 20), Status::Ok);
    assert_eq!(payloads(index, rect(2.0, 2.0, 5.0, 5.0), false), [10, 20]);
    assert_eq!(payloads(index, rect(2.0, 2.0, 5.0, 5.0), true), [20]);
    let (from, to) = (rect(4.0, 4.0, 5.0, 5.0), rect(7.0, 7.0, 8.0, 9.0));
    let mut count = 0;
    // SAFETY: the index is open, and the rest are local variables.
    unsafe {
        assert_eq!(
            indelible_spatial_relocate(index, 20, &from, &to),
            Status::Ok
        );
        assert_eq!(
            indelible_spatial_relocate(index, 20, &from, &to),
            Status::Absent
        );
        assert_eq!(indelible_spatial_remove(index, &to, 21), Status::Absent);
        assert_eq!(indelible_spatial_len(index, &mut count), Status::Ok);
        assert_eq!(count, 2);
        assert_eq!(indelible_spatial_remove(index, &to, 20), Status::Ok);
        assert_eq!(indelible_spatial_len(index, &mut count), Status::Ok);
    }
    assert_eq!(count, 1);
    let everything = rect(
        f64::NEG_INFINITY,
        f64::NEG_INFINITY,
        f64::INFINITY,
        f64::INFINITY,
    );
    assert_eq!(payloads(index, everything, false), [10]);
    for bad in [rect(1.0, 0.0, 0.0, 1.0), rect(f64::NAN, 0.0, 1.0, 1.0)] {
        assert_eq!(insert(index, bad, 1), Status::Invalid, "{bad:?}");
    }
    close(pool, index);
}

#[test]
fn windows_say_how_many_records_there_are_and_write_no_more_than_the_room() {
    let pool = in_memory();
    let index = opened(pool, c"places", INDELIBLE_POINT3, c"");
    for i in 0..10_u32 {
        let place = SpatialBox {
            low: [f64::from(i); 3],
            high: [f64::from(i); 3],
        };
        assert_eq!(insert(index, place, i.into()), Status::Ok);
    }
    let mut records = [NOTHING; 5];
    let mut count = 0;
    let window = SpatialBox {
        low: [1.0; 3],
        high: [6.0; 3],
    };
    // SAFETY: the index is open, there is room for 4 records, and the rest are local variables.
    let status = unsafe {
        indelible_spatial_intersecting(index, &window, records.as_mut_ptr(), 4, &mut count)
    };
    assert_eq!((status, count), (Status::Ok, 6));
    assert!(records[..4].iter().all(|found| found.payload <= 6));
    assert!(
        records[..4]
            .iter()
            .all(|found| found.shape.low == found.shape.high)
    );
    assert_eq!(records[4], NOTHING);
    close(pool, index);
}

#[test]
fn the_nearest_come_in_order_with_metres_on_the_globe() {
    let pool = in_memory();
    let index = opened(
        pool,
        c"shops",
        INDELIBLE_POINT2,
        c"kind=hilbert,coordinates=lonlat",
    );
    for (payload, east) in [(3, 0.03), (1, -179.99), (2, 0.02)] {
        assert_eq!(insert(index, point(east, 0.0), payload), Status::Ok);
    }
    assert_eq!(insert(index, point(181.0, 0.0), 4), Status::Invalid);
    assert_eq!(insert(index, rect(0.0, 0.0, 1.0, 1.0), 4), Status::Invalid);
    assert!(last_error().contains("corners of a point"));
    let mut records = [NOTHING; 3];
    let mut count = 0;
    let mut nearest = |from: SpatialBox, within: f64| {
        // SAFETY: the index is open, there is room for 3 records, and the rest are local variables.
        let status = unsafe {
            indelible_spatial_nearest(index, &from, within, records.as_mut_ptr(), 3, &mut count)
        };
        (status, records[..count].to_vec())
    };
    let (status, found) = nearest(point(0.0, 0.0), 5000.0);
    assert_eq!(status, Status::Ok, "{}", last_error());
    let rows: Vec<(u64, f64)> = found
        .iter()
        .map(|found| (found.payload, found.distance.round()))
        .collect();
    assert_eq!(rows, [(2, 2224.0), (3, 3336.0)]);
    // Across the antimeridian.
    assert_eq!(nearest(point(179.99, 0.0), 5000.0).1[0].payload, 1);
    assert_eq!(payloads(index, rect(179.0, -1.0, -179.0, 1.0), false), [1]);
    assert_eq!(nearest(point(0.0, 0.0), f64::NAN).0, Status::Invalid);
    assert_eq!(nearest(point(0.0, 0.0), f64::INFINITY).1.len(), 3);
    close(pool, index);
}

#[test]
fn what_is_there_is_opened_unless_geometry_or_options_say_otherwise() {
    let pool = in_memory();
    for (geometry, name) in [
        (INDELIBLE_POINT2, c"a"),
        (INDELIBLE_POINT3, c"b"),
        (INDELIBLE_BOX2, c"c"),
        (INDELIBLE_BOX3, c"d"),
    ] {
        let index = opened(pool, name, geometry, c"");
        // SAFETY: the index has just been opened, and is closed once.
        assert_eq!(unsafe { indelible_spatial_close(index) }, Status::Ok);
        for other in INDELIBLE_POINT2..=INDELIBLE_BOX3 {
            let (status, index) = open(pool, name, other, None);
            if other == geometry {
                assert_eq!(status, Status::Ok, "{}", last_error());
                // SAFETY: as above.
                assert_eq!(unsafe { indelible_spatial_close(index) }, Status::Ok);
            } else {
                assert!(status == Status::Refused && index.is_null());
            }
        }
    }
    let (status, _) = open(pool, c"a", INDELIBLE_POINT2, Some(c"coordinates=lonlat"));
    assert_eq!(status, Status::Refused, "{}", last_error());
    for bad in [c"kind=lbtree", c"nonsense", c"\xff"] {
        let (status, _) = open(pool, c"a", INDELIBLE_POINT2, Some(bad));
        assert_eq!(status, Status::Invalid, "{bad:?}");
    }
    assert_eq!(open(pool, c"e", 0, None).0, Status::Invalid);
    let mut map = null_mut();
    // SAFETY: an open pool, a literal, and a local variable to write to; the pool is closed once.
    unsafe {
        let status = indelible_map_open(pool, c"a".as_ptr(), &mut map);
        assert_eq!(status, Status::Refused, "{}", last_error());
        assert_eq!(indelible_pool_close(pool), Status::Ok);
    }
}

#[test]
fn null_is_refused_everywhere() {
    let pool = in_memory();
    let index = opened(pool, c"places", INDELIBLE_POINT2, c"");
    let here = point(1.0, 2.0);
    let (mut record, mut count, mut number, mut other) = (NOTHING, 0, 0, null_mut());
    let (name, most) = (c"a".as_ptr(), usize::MAX);
    // SAFETY: what is not null is valid.
    let all = unsafe {
        [
            indelible_spatial_open(null(), name, 1, null(), &mut other),
            indelible_spatial_open(pool, null(), 1, null(), &mut other),
            indelible_spatial_open(pool, name, 1, null(), null_mut()),
            indelible_spatial_close(null_mut()),
            indelible_spatial_insert(null(), &here, 1),
            indelible_spatial_insert(index, null(), 1),
            indelible_spatial_remove(null(), &here, 1),
            indelible_spatial_remove(index, null(), 1),
            indelible_spatial_relocate(null(), 1, &here, &here),
            indelible_spatial_relocate(index, 1, null(), &here),
            indelible_spatial_relocate(index, 1, &here, null()),
            indelible_spatial_intersecting(null(), &here, &mut record, 1, &mut count),
            indelible_spatial_intersecting(index, null(), &mut record, 1, &mut count),
            indelible_spatial_intersecting(index, &here, null_mut(), 1, &mut count),
            indelible_spatial_intersecting(index, &here, &mut record, most, &mut count),
            indelible_spatial_contained(index, &here, &mut record, 1, null_mut()),
            indelible_spatial_nearest(null(), &here, 1.0, &mut record, 1, &mut count),
            indelible_spatial_nearest(index, null(), 1.0, &mut record, 1, &mut count),
            indelible_spatial_nearest(index, &here, 1.0, null_mut(), 1, &mut count),
            indelible_spatial_nearest(index, &here, 1.0, &mut record, most, &mut count),
            indelible_spatial_nearest(index, &here, 1.0, &mut record, 1, null_mut()),
            indelible_spatial_len(null(), &mut number),
            indelible_spatial_len(index, null_mut()),
        ]
    };
    assert_eq!(all, [Status::Invalid; 23]);
    assert!(other.is_null() && record == NOTHING);
    close(pool, index);
}

#[test]
fn records_are_counted_without_room_for_them() {
    let pool = in_memory();
    let index = opened(pool, c"places", INDELIBLE_POINT2, c"");
    for payload in 0..3 {
        assert_eq!(insert(index, point(1.0, 2.0), payload), Status::Ok);
    }
    let (here, mut count) = (point(1.0, 2.0), 9);
    // SAFETY: the index is open, arrays have no elements, and the rest are local variables.
    unsafe {
        for search in [indelible_spatial_intersecting, indelible_spatial_contained] {
            let status = search(index, &here, null_mut(), 0, &mut count);
            assert_eq!((status, count), (Status::Ok, 3), "{}", last_error());
        }
        let none = indelible_spatial_nearest(index, &here, 1.0, null_mut(), 0, &mut count);
        assert_eq!((none, count), (Status::Ok, 0));
        assert_eq!(indelible_spatial_insert_batch(index, null(), 0), Status::Ok);
        assert_eq!(
            indelible_spatial_bulk_load(index, null(), 0, 0.7),
            Status::NotEmpty,
            "as with any records"
        );
    }
    close(pool, index);
}

#[test]
fn many_records_are_added_at_once() {
    let pool = in_memory();
    let index = opened(pool, c"stops", INDELIBLE_POINT2, c"");
    let record = |payload: u64| SpatialRecord {
        shape: point((payload % 40) as f64, (payload / 40) as f64),
        payload,
        ..NOTHING
    };
    let records: Vec<SpatialRecord> = (0..1_000).map(record).collect();
    let (loaded, added) = records.split_at(900);
    let not_points = [
        records[0],
        SpatialRecord {
            shape: rect(0.0, 0.0, 1.0, 1.0),
            ..NOTHING
        },
    ];
    let mut count = 0;
    // SAFETY: the index is open; the arrays have so many records.
    unsafe {
        let (first, least) = (loaded.as_ptr(), loaded.len());
        let load = |fill| indelible_spatial_bulk_load(index, first, least, fill);
        assert_eq!(load(0.0), Status::Invalid);
        assert_eq!(load(0.7), Status::Ok, "{}", last_error());
        assert_eq!(load(0.7), Status::NotEmpty);
        assert_eq!(
            indelible_spatial_insert_batch(index, added.as_ptr(), added.len()),
            Status::Ok
        );
        assert_eq!(
            indelible_spatial_insert_batch(index, not_points.as_ptr(), 2),
            Status::Invalid,
            "and nothing is added"
        );
        assert_eq!(
            indelible_spatial_insert_batch(index, null(), 1),
            Status::Invalid
        );
        assert_eq!(indelible_spatial_len(index, &mut count), Status::Ok);
    }
    assert_eq!(count, 1_000);
    assert_eq!(
        payloads(index, rect(3.0, 0.0, 3.0, 4.0), false),
        [3, 43, 83, 123, 163]
    );
    assert_eq!(payloads(index, rect(38.5, 23.5, 90.0, 90.0), false), [999]);
    close(pool, index);
}
