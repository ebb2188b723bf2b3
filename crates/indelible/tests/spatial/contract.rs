//! The whole contract of a spatial index against a list that is searched by brute force: every kind of index, every type of geometry, all
//! that can be chosen at its ends, hostile coordinates, closes and crashes in between.
//!
//! The library's own tests run it a second time, with small nodes.

use super::cases::cases;
use super::image::crash;
use super::spatial_model::{Model, compare, contains, corners, distance, intersects, sorted};
use indelible::{
    Box2, Box3, Error, Geometry, Point2, Point3, Pool, Spatial, SpatialKind, SpatialOptions,
};
use proptest::prelude::*;

/// Coordinates of a shape of any type: the lower corner, and what is added to it for the upper corner of a box.
type Raw = ([f64; 3], [f64; 3]);

fn shape<G: Geometry>((low, size): Raw) -> G {
    G::from_coordinates(|i| match i.checked_sub(G::AXES) {
        None => low[i],
        // A sum with NaN, which infinities can make, is not above the lower edge.
        Some(axis) => (low[axis] + size[axis]).max(low[axis]),
    })
}

/// How the coordinates of a history lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    /// Few whole numbers: equal records, edges that touch, equal distances.
    Grid,
    /// All on one line.
    Line,
    /// Close together in few places that are far from each other.
    Clusters,
    /// Anywhere in some extent.
    Anywhere,
    /// Subnormal numbers, huge ones, both zeros, infinities.
    Hostile,
}

const FIELDS: [Field; 5] = [
    Field::Grid,
    Field::Line,
    Field::Clusters,
    Field::Anywhere,
    Field::Hostile,
];

fn coordinate(field: Field) -> BoxedStrategy<f64> {
    let whole = || (0..8_i32).prop_map(f64::from);
    match field {
        Field::Grid => whole().boxed(),
        Field::Line => (-1000.0..1000.0).boxed(),
        Field::Clusters => (0..4_i32, -0.5..0.5)
            .prop_map(|(cluster, off)| f64::from(cluster * 10_000) + off)
            .boxed(),
        Field::Anywhere => (-180.0..180.0).boxed(),
        Field::Hostile => prop_oneof![
            Just(0.0),
            Just(-0.0),
            Just(f64::MIN_POSITIVE),
            (0..9_u64).prop_map(|bits| -f64::from_bits(bits)),
            (0..9_u64).prop_map(f64::from_bits),
            Just(f64::MAX),
            Just(f64::MIN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            (-300..300_i32).prop_map(|exponent| 10_f64.powi(exponent)),
            (-300..300_i32).prop_map(|exponent| -10_f64.powi(exponent)),
            -2.0..2.0,
        ]
        .boxed(),
    }
}

/// What is added to the lower edge of a box: often nothing, sometimes the world.
fn size(field: Field) -> BoxedStrategy<f64> {
    if field == Field::Grid {
        return (0..4_i32).prop_map(f64::from).boxed();
    }
    prop_oneof![
        3 => Just(0.0),
        3 => (0..3_i32).prop_map(f64::from),
        2 => 0.0..20.0,
        1 => coordinate(field).prop_map(f64::abs),
        1 => Just(1e6),
    ]
    .boxed()
}

fn raw(field: Field) -> impl Strategy<Value = Raw> {
    let low = [coordinate(field), coordinate(field), coordinate(field)];
    let size = [size(field), size(field), size(field)];
    (low, size).prop_map(move |(mut low, mut size)| {
        if field == Field::Line {
            (low[1], low[2]) = (low[0] * 0.5, -low[0]);
            size[1] = size[0] * 0.5;
            size[2] = 0.0;
        }
        (low, size)
    })
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(Raw, u64),
    InsertBatch(Vec<(Raw, u64)>),
    /// Removes the record of this number, counted from the oldest one, round and round.
    Remove(usize),
    RemoveAny(Raw, u64),
    Relocate(usize, Raw),
    Near(Raw, Raw),
    Windows(Vec<Raw>),
    Everything,
    Compact,
    Crash,
    Close,
    Check,
}

fn operation(field: Field, lives_on: bool) -> impl Strategy<Value = Operation> {
    use Operation::*;
    let payload = || prop_oneof![0..4_u64, any::<u64>()];
    let record = move || (raw(field), payload());
    let or_check = move |reopen| Just(if lives_on { reopen } else { Check });
    prop_oneof![
        20 => record().prop_map(|(shape, payload)| Insert(shape, payload)),
        3 => proptest::collection::vec(record(), 0..80).prop_map(InsertBatch),
        8 => any::<usize>().prop_map(Remove),
        2 => record().prop_map(|(shape, payload)| RemoveAny(shape, payload)),
        6 => (any::<usize>(), raw(field)).prop_map(|(at, to)| Relocate(at, to)),
        5 => (raw(field), raw(field)).prop_map(|(centre, other)| Near(centre, other)),
        5 => proptest::collection::vec(raw(field), 1..6).prop_map(Windows),
        1 => Just(Everything),
        1 => Just(Compact),
        1 => or_check(Crash),
        1 => or_check(Close),
        1 => Just(Check),
    ]
}

fn history(lives_on: bool) -> impl Strategy<Value = (Field, Vec<Operation>)> {
    proptest::sample::select(FIELDS.to_vec()).prop_flat_map(move |field| {
        let operations = proptest::collection::vec(operation(field, lives_on), 0..300);
        (Just(field), operations)
    })
}

fn pairs<G: Geometry>(records: impl Iterator<Item = indelible::Record<G>>) -> Vec<(G, u64)> {
    sorted(records.map(|record| (record.shape, record.payload)))
}

fn apply<G: Geometry>(
    spatial: &Spatial<G>,
    model: &mut Model<G>,
    field: Field,
    operation: Operation,
) {
    let existing = |model: &Model<G>, at: usize| {
        let count = model.records.len();
        (count > 0).then(|| model.records[at % count])
    };
    match operation {
        Operation::Insert(raw, payload) => {
            spatial.insert(shape(raw), payload).unwrap();
            model.insert(shape(raw), payload);
        }
        Operation::InsertBatch(records) => {
            let records = records.into_iter();
            let records: Vec<(G, u64)> = records.map(|(raw, of)| (shape(raw), of)).collect();
            spatial.insert_batch(&records).unwrap();
            records
                .iter()
                .for_each(|&(of, payload)| model.insert(of, payload));
        }
        Operation::Remove(at) => {
            if let Some((of, payload)) = existing(model, at) {
                assert!(spatial.remove(of, payload).unwrap());
                assert!(model.remove(of, payload));
            }
        }
        Operation::RemoveAny(raw, payload) => {
            let of: G = shape(raw);
            assert_eq!(
                spatial.remove(of, payload).unwrap(),
                model.remove(of, payload)
            );
        }
        Operation::Relocate(at, raw) => {
            if let Some((from, payload)) = existing(model, at) {
                let to = shape(raw);
                assert!(spatial.relocate(payload, from, to).unwrap());
                assert!(model.relocate(payload, from, to));
            }
            let (from, to): (G, G) = (shape(raw), shape(raw));
            let wanted = model.relocate(u64::MAX - 1, from, to);
            assert_eq!(spatial.relocate(u64::MAX - 1, from, to).unwrap(), wanted);
        }
        Operation::Near(centre, other) => assert_distances(spatial, model, field, centre, other),
        Operation::Windows(windows) => assert_windows(spatial, model, &windows),
        Operation::Everything => {
            let nothing_is_beyond = |i: usize| {
                if i < G::AXES {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            };
            let everywhere = G::Window::from_coordinates(nothing_is_beyond);
            let found = spatial.intersecting(everywhere).unwrap();
            assert_eq!(found.len() as u64, spatial.len().unwrap());
            assert_eq!(pairs(found), sorted(model.records.clone()));
            assert_same_pairs(spatial, model);
        }
        Operation::Compact => spatial.compact().unwrap(),
        Operation::Check => assert_sound(spatial, model),
        Operation::Crash | Operation::Close => unreachable!(),
    }
}

fn assert_sound<G: Geometry>(spatial: &Spatial<G>, model: &Model<G>) {
    assert_eq!(spatial.check().unwrap(), [""; 0]);
    let records = model.records.len();
    assert_eq!(spatial.len().unwrap(), records as u64);
    assert_eq!(spatial.is_empty().unwrap(), records == 0);
    let stat = spatial.stat().unwrap();
    assert_eq!((stat.kind, stat.records), (spatial.kind(), records as u64));
    match (spatial.bounds().unwrap(), model.bounds()) {
        (Some(found), Some([low, high])) => {
            let [found_low, found_high] = corners(&found);
            let holds =
                |axis: usize| found_low[axis] <= low[axis] && high[axis] <= found_high[axis];
            assert!((0..G::AXES).all(holds), "{found:?} {low:?} {high:?}");
        }
        (found, wanted) => assert!(wanted.is_none(), "{found:?} {wanted:?}"),
    }
    let leaves = spatial.leaves().unwrap();
    let in_leaves: usize = leaves.iter().map(|(_, records)| records).sum();
    assert_eq!(in_leaves, records);
}

fn assert_windows<G: Geometry>(spatial: &Spatial<G>, model: &Model<G>, windows: &[Raw]) {
    let windows: Vec<G::Window> = windows.iter().map(|&raw| shape(raw)).collect();
    let batch = spatial.query_batch(&windows).unwrap();
    assert_eq!(batch.len(), windows.len());
    for (window, in_batch) in windows.iter().zip(batch) {
        let wanted = sorted(model.matching(|of| intersects(window, of)));
        assert_eq!(pairs(spatial.intersecting(*window).unwrap()), wanted);
        assert_eq!(pairs(in_batch), wanted);
        let wanted = sorted(model.matching(|of| contains(window, of)));
        assert_eq!(pairs(spatial.contained_in(*window).unwrap()), wanted);
        let corner = G::Point::from_coordinates(|i| window.coordinate(i));
        let wanted = sorted(model.matching(|of| contains(of, &corner)));
        assert_eq!(pairs(spatial.at_point(corner).unwrap()), wanted);
    }
}

/// How far a distance may be from that of the model: rounding, and squares that underflow and overflow.
fn is_close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= 1e-12 * wanted || found == wanted
}

fn assert_distances<G: Geometry>(
    spatial: &Spatial<G>,
    model: &Model<G>,
    field: Field,
    centre: Raw,
    other: Raw,
) {
    let (centre, other): (G::Point, G::Point) = (shape(centre), shape(other));
    let all: Vec<(f64, (G, u64))> = nearest(spatial.nearest(centre).unwrap());
    assert_eq!(
        sorted(all.iter().map(|of| of.1)),
        sorted(model.records.clone())
    );
    for (found, (of, _)) in &all {
        let wanted = distance(&centre, of);
        assert!(
            is_close(*found, wanted),
            "{centre:?} {of:?}: {found} for {wanted}"
        );
    }
    for pair in all.windows(2) {
        assert!(pair[0].0 <= pair[1].0, "{pair:?}");
        // Whole numbers have no rounding: equal distances are equal, and payloads decide.
        if field == Field::Grid && pair[0].0 == pair[1].0 {
            assert!(compare(&pair[0].1, &pair[1].1).is_le(), "{pair:?}");
        }
    }
    let some = spatial.nearest(centre).unwrap().take(20);
    assert_eq!(nearest(some), all[..all.len().min(20)]);
    let odd = spatial.nearest(centre).unwrap();
    let odd = nearest(odd.matching(|record| record.payload % 2 == 1));
    let wanted = all.iter().copied().filter(|of| of.1.1 % 2 == 1);
    assert_eq!(odd, wanted.collect::<Vec<_>>());

    for within in [0.0, distance(&centre, &other), f64::INFINITY] {
        let found = nearest(spatial.nearest(centre).unwrap().within(within).unwrap());
        assert_eq!(found, all[..found.len()], "a beginning of what there is");
        // At the bound itself rounding decides, except for whole numbers.
        let slack = if field == Field::Grid { 0.0 } else { 1e-12 };
        let must = |of: &(G, u64)| distance(&centre, &of.0) <= within * (1.0 - slack);
        let may = |of: &(G, u64)| distance(&centre, &of.0) <= within * (1.0 + slack);
        assert!(found.iter().all(|of| may(&of.1)), "{within} {found:?}");
        assert!(!all[found.len()..].iter().any(|of| must(&of.1)), "{within}");
        let collected = spatial.within_distance(centre, within).unwrap();
        assert_eq!(pairs(collected), sorted(found.iter().map(|of| of.1)));
    }
}

fn nearest<G: Geometry>(
    found: impl Iterator<Item = indelible::Result<(f64, indelible::Record<G>)>>,
) -> Vec<(f64, (G, u64))> {
    let found = found.map(Result::unwrap);
    found
        .map(|(distance, of)| (distance, (of.shape, of.payload)))
        .collect()
}

/// Joins with a part of the records, in both orders.
fn assert_same_pairs<G: Geometry>(spatial: &Spatial<G>, model: &Model<G>) {
    let pool = Pool::in_memory().unwrap();
    let other = pool
        .spatial_with::<G::Window>("other", spatial.kind())
        .unwrap();
    let some = model.records.iter().step_by(7);
    let windows = some.map(|(of, payload)| {
        let [low, high] = corners(of);
        let edge = |i: usize| {
            i.checked_sub(G::AXES)
                .map_or_else(|| low[i], |axis| high[axis])
        };
        (G::Window::from_coordinates(edge), *payload)
    });
    let windows: Vec<(G::Window, u64)> = windows.collect();
    other.insert_batch(&windows).unwrap();
    let mut wanted = Vec::new();
    for a in &model.records {
        let partners = windows.iter().filter(|b| intersects(&a.0, &b.0));
        wanted.extend(partners.map(|b| (*a, *b)));
    }
    let order = |a: &((G, u64), (G::Window, u64)), b: &((G, u64), (G::Window, u64))| {
        compare(&a.0, &b.0).then(compare(&a.1, &b.1))
    };
    wanted.sort_by(order);
    let found = spatial.join(&other).unwrap().map(Result::unwrap);
    let mut found: Vec<_> = found
        .map(|(a, b)| ((a.shape, a.payload), (b.shape, b.payload)))
        .collect();
    found.sort_by(order);
    assert_eq!(found, wanted);
    let found = other.join(spatial).unwrap().map(Result::unwrap);
    let mut found: Vec<_> = found
        .map(|(b, a)| ((a.shape, a.payload), (b.shape, b.payload)))
        .collect();
    found.sort_by(order);
    assert_eq!(found, wanted);
}

/// Every kind of index of the plane or of space that can hold `G`, as it is and with all that can be chosen at its ends.
fn layouts<G: Geometry>() -> Vec<SpatialOptions> {
    let all = SpatialKind::all().iter().copied();
    let all = all.flat_map(|kind| {
        SpatialOptions::extremes(kind)
            .into_iter()
            .chain([kind.into()])
    });
    let in_plane = all.filter(|options| options.get("coordinates").as_deref() != Some("lonlat"));
    let can_be = |options: &SpatialOptions| {
        let made = Pool::in_memory()
            .unwrap()
            .spatial_with::<G>("s", options.clone());
        assert!(matches!(made, Ok(_) | Err(Error::BadOption(_))), "{made:?}");
        made.is_ok()
    };
    in_plane.filter(can_be).collect()
}

fn run<G: Geometry>(layout: usize, (field, operations): (Field, Vec<Operation>)) {
    let layouts = layouts::<G>();
    let options = &layouts[layout % layouts.len()];
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.unwrap();
    let path = directory.path().join("contract.pool");
    let mut pool = Pool::create(&path).unwrap();
    let mut spatial = pool.spatial_with::<G>("s", options).unwrap();
    let mut model = Model::default();
    for operation in operations {
        match operation {
            Operation::Crash => crash(&path, || drop((pool, spatial))),
            Operation::Close => {
                drop(spatial);
                pool.close().unwrap();
            }
            operation => {
                apply(&spatial, &mut model, field, operation);
                continue;
            }
        }
        pool = Pool::open(&path).unwrap();
        spatial = pool.open_spatial("s").unwrap();
    }
    apply(&spatial, &mut model, field, Operation::Everything);
    assert_sound(&spatial, &model);
}

macro_rules! contract {
    ($($name:ident, $durable:ident: $G:ty;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: cases(8) * SpatialKind::all().len() as u32, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(layout: usize, history in history(false)) {
                    run::<$G>(layout, history);
                }

                #[test]
                fn $durable(layout: usize, history in history(true)) {
                    run::<$G>(layout, history);
                }
            )+
        }
    };
}
contract! {
    points_of_the_plane_do_what_a_list_does, points_of_the_plane_survive: Point2;
    points_of_space_do_what_a_list_does, points_of_space_survive: Point3;
    boxes_of_the_plane_do_what_a_list_does, boxes_of_the_plane_survive: Box2;
    boxes_of_space_do_what_a_list_does, boxes_of_space_survive: Box3;
}

#[test]
fn bulk_load_gives_the_index_that_inserts_would() {
    fn check<G: Geometry>() {
        for options in layouts::<G>() {
            for (count, fill) in [(0, 0.7), (1, 0.7), (40, 0.1), (5000, 1.0), (20_000, 0.7)] {
                let pool = Pool::in_memory().unwrap();
                let spatial = pool.spatial_with::<G>("s", &options).unwrap();
                let mut model = Model::default();
                for i in 0..count {
                    let spread = |by: u64| (i as u64 * by % 10_007) as f64;
                    model.insert(
                        shape(([spread(31), spread(577), spread(7919)], [2.0; 3])),
                        i as u64 % 999,
                    );
                }
                let refused = spatial.bulk_load(&model.records, 1.5);
                assert!(matches!(refused, Err(Error::BadOption(_))));
                spatial.bulk_load(&model.records, fill).unwrap();
                assert_sound(&spatial, &model);
                let window = ([500.0; 3], [5000.0, 700.0, 9000.0]);
                assert_windows(&spatial, &model, &[window, ([0.0; 3], [1e9; 3])]);
                if count > 0 {
                    let again = spatial.bulk_load(&model.records, fill);
                    assert!(matches!(again, Err(Error::NotEmpty)));
                    let (of, payload) = model.records[0];
                    assert!(spatial.remove(of, payload).unwrap() && model.remove(of, payload));
                    spatial.insert(of, 1).unwrap();
                    model.insert(of, 1);
                }
                assert_sound(&spatial, &model);
            }
        }
    }
    check::<Point2>();
    check::<Point3>();
    check::<Box2>();
    check::<Box3>();
}

#[test]
fn many_equal_records_come_and_go() {
    equal_records(3_000);
}

/// `cargo test --release --test spatial -- --ignored a_million`
#[test]
#[ignore = "takes long; run it in release"]
fn a_million_equal_records_come_and_go() {
    equal_records(1_000_000);
}

fn equal_records(count: u64) {
    for options in layouts::<Point2>() {
        let pool = Pool::in_memory().unwrap();
        let spatial = pool.spatial_with::<Point2>("s", &options).unwrap();
        let here = Point2::new(0.5, 0.25);
        for payload in 0..count {
            spatial.insert(here, payload % 1000).unwrap();
        }
        assert_eq!(spatial.check().unwrap(), [""; 0]);
        assert_eq!(spatial.at_point(here).unwrap().len() as u64, count);
        let nearest = spatial
            .nearest(Point2::new(0.0, 0.0))
            .unwrap()
            .map(Result::unwrap);
        let payloads: Vec<u64> = nearest.map(|(_, record)| record.payload).collect();
        assert!(payloads.is_sorted());
        assert_eq!(payloads.len() as u64, count);
        for payload in 0..count {
            assert!(spatial.remove(here, payload % 1000).unwrap());
        }
        assert!(!spatial.remove(here, 0).unwrap());
        assert!(spatial.is_empty().unwrap());
        assert_eq!(spatial.check().unwrap(), [""; 0]);
    }
}

/// The last place of the curve, and a payload whose place among equals is the last one, too.
#[test]
fn equal_records_at_the_end_of_all_keys_are_split() {
    let pool = Pool::in_memory().unwrap();
    for kind in SpatialKind::all() {
        let spatial = pool.spatial_with::<Point2>(kind.name(), *kind).unwrap();
        let (end, payload) = (
            Point2::new(f64::INFINITY, f64::NEG_INFINITY),
            0xd088_478f_5230_cb4c,
        );
        for _ in 0..200 {
            spatial.insert(end, payload).unwrap();
        }
        assert_eq!(spatial.len().unwrap(), 200);
        assert_eq!(spatial.check().unwrap(), [""; 0], "{kind}");
        for left in (0..200).rev() {
            assert!(spatial.remove(end, payload).unwrap());
            assert_eq!(spatial.len().unwrap(), left);
        }
    }
}
