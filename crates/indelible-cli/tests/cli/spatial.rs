//! Spatial indexes on the command line, end to end.

use std::path::PathBuf;
use std::process::{Command, Output};

struct Cli {
    directory: tempfile::TempDir,
}

impl Cli {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self {
            directory: directory.unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn run(&self, line: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_indelible"))
            .args(line.split_whitespace())
            .current_dir(self.directory.path())
            .output()
            .unwrap()
    }

    /// What a command that must succeed prints.
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {err}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail with this exit code, without a panic, says.
    fn fails(&self, code: i32, line: &str) -> String {
        let output = self.run(line);
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {err}");
        err
    }

    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(line)).unwrap()
    }

    /// The lines that a search prints, sorted.
    fn found(&self, line: &str) -> Vec<String> {
        let mut lines: Vec<String> = self.ok(line).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

const SHOPS: &str = "\
name,lat,lon,id
Umeda,34.7025,135.4959,11
Namba,34.6687,135.5023,12
Tokyo,35.6812,139.7671,13
Suva,-18.1416,178.4419,14
Apia,-13.8333,-171.7667,15
";

const PARKS: &str = r#"{"type": "FeatureCollection", "features": [
{"type": "Feature", "id": 7, "properties": {"area": "40"}, "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [4, 1], [3, 3], [0, 0]]]}},
{"type": "Feature", "id": 8, "properties": {"area": 50}, "geometry": null},
{"type": "Feature", "id": 9, "properties": {"area": 60}, "geometry": {"type": "GeometryCollection", "geometries": [
    {"type": "Point", "coordinates": [10, 10, 99]}, {"type": "MultiPoint", "coordinates": [[12, 8], [11, 11]]}]}}
]}"#;

#[test]
fn points_of_a_csv_file_are_loaded_and_searched() {
    let cli = Cli::new();
    cli.write("shops.csv", SHOPS);
    let loaded = cli.json("--json load p shops shops.csv --lon lon --lat 2 --payload id");
    assert_eq!(loaded["records_read"], 5);
    let osaka = "query p shops --window 135,34,136,35";
    assert_eq!(
        cli.found(osaka),
        ["135.4959,34.7025\t11", "135.5023,34.6687\t12"]
    );
    // Across the antimeridian.
    assert_eq!(
        cli.found("query p shops --window 170,-30,-170,0"),
        ["-171.7667,-13.8333\t15", "178.4419,-18.1416\t14"]
    );
    assert_eq!(
        cli.ok("query p shops --at 139.7671,35.6812"),
        "139.7671,35.6812\t13\n"
    );
    assert_eq!(
        cli.ok("query p shops --near 135.4983,34.7055 --within 5km"),
        "135.4959,34.7025\t11\t399.265\n135.5023,34.6687\t12\t4108.29\n"
    );
    assert_eq!(cli.found("query p shops").len(), 5);
    assert_eq!(
        cli.ok("query p shops --near -171,-13 --k 2")
            .lines()
            .count(),
        2
    );
    assert_eq!(cli.ok("query p shops --near 0,0 --within 20m"), "");
    let line = cli.ok("--json query p shops --near 139.7671,35.6812 --k 1");
    assert_eq!(
        line,
        "{\"distance\":0.0,\"payload\":13,\"shape\":[139.7671,35.6812]}\n"
    );
    assert_eq!(
        cli.ok("query p shops --at 139.7671,35.6812 --geojson"),
        "{\"type\":\"FeatureCollection\",\"features\":[\n\
         {\"geometry\":{\"coordinates\":[139.7671,35.6812],\"type\":\"Point\"},\"id\":13,\"properties\":{\"payload\":13},\"type\":\"Feature\"}\n\
         ]}\n"
    );
    // What was written is read again, and a second load adds.
    let all = cli.ok("query p shops --geojson");
    cli.write("again.geojson", &all);
    cli.ok("load p again again.geojson --payload payload");
    assert_eq!(cli.found("query p again"), cli.found("query p shops"));
    cli.ok("load p again again.geojson --payload id");
    assert_eq!(cli.found("query p again").len(), 10);
    cli.ok("check p");
}

#[test]
fn a_feature_across_the_antimeridian_has_a_box_on_each_side() {
    let cli = Cli::new();
    let polygon =
        |west: f64, east: f64| format!("[[[{west},-20],[{east},-20],[{east},-16],[{west},-20]]]");
    let feature = |geometry: &str, polygons: &str| {
        format!(
            "{{\"type\":\"Feature\",\"geometry\":{{\"type\":\"{geometry}\",\"coordinates\":{polygons}}}}}"
        )
    };
    let cut = format!("[{},{}]", polygon(177.0, 180.0), polygon(-180.0, -178.0));
    let features = [
        feature("MultiPolygon", &cut),
        // Not cut, as some programs write it.
        feature("Polygon", &polygon(170.0, 190.0)),
        feature("Polygon", &polygon(10.0, 20.0)),
    ];
    let collection = |features: &[String]| {
        format!(
            "{{\"type\":\"FeatureCollection\",\"features\":[{}]}}",
            features.join(",")
        )
    };
    cli.write("islands.geojson", &collection(&features));
    let loaded = cli.json("--json load p islands islands.geojson");
    assert_eq!(loaded["records_read"], 5);
    let boxes = [
        "-180,-20,-170,-16\t1",
        "-180,-20,-178,-16\t0",
        "10,-20,20,-16\t2",
        "170,-20,180,-16\t1",
        "177,-20,180,-16\t0",
    ];
    assert_eq!(cli.found("query p islands"), boxes);
    assert_eq!(
        cli.found("query p islands --window 0,-30,100,0"),
        [boxes[2]]
    );
    // In the plane there is no antimeridian.
    cli.ok("load p plane islands.geojson --kind hilbert");
    assert_eq!(cli.found("query p plane").len(), 3);
    // What is no place on the globe is named.
    cli.write(
        "far.geojson",
        &collection(&[features[2].clone(), feature("Point", "[190,91]")]),
    );
    let refused = cli.fails(1, "load p far far.geojson");
    assert!(
        refused.contains("feature 1: 91 is out of range"),
        "{refused}"
    );
}

#[test]
fn boxes_of_a_csv_file_are_loaded_and_searched() {
    let cli = Cli::new();
    cli.write(
        "tiles.csv",
        "id,west,south,east,north\n7,0,0,4,3\n8,-10,5,-2,6.5\n9,3,3,3,3\n",
    );
    let columns = "--lon west,east --lat south,north --payload id";
    let loaded = cli.json(&format!("--json load p tiles tiles.csv {columns}"));
    assert_eq!(loaded["records_read"], 3);
    let around_origin = cli.found("query p tiles --window -3,2,2,6");
    assert_eq!(around_origin, ["-10,5,-2,6.5\t8", "0,0,4,3\t7"]);
    assert_eq!(
        cli.found("query p tiles --at 3,3"),
        ["0,0,4,3\t7", "3,3,3,3\t9"]
    );
    cli.write("blocks.csv", "0,0,0,1,2,3\n");
    cli.ok("load p blocks blocks.csv --no-header --x 1,4 --y 2,5 --z 3,6");
    assert_eq!(cli.found("query p blocks"), ["0,0,0,1,2,3\t0"]);
    cli.ok("check p");
    cli.write("turned.csv", "w,e,s,n\n0,1,0,1\n5,4,0,1\n");
    let error = cli.fails(1, "load p turned turned.csv --lon w,e --lat s,n");
    assert!(
        error.contains("line 3, column 2 (\"e\"): 4 is less than 5"),
        "{error}"
    );
    let error = cli.fails(1, "load p tiles tiles.csv --lon west,east --lat south");
    assert!(
        error.contains("one column for points, or two for boxes"),
        "{error}"
    );
}

#[test]
fn bounding_boxes_of_features_are_loaded_and_searched() {
    let cli = Cli::new();
    cli.write("parks.geojson", PARKS);
    let loaded = cli.json("--json load p parks parks.geojson");
    assert_eq!(loaded["records_read"], 2);
    assert_eq!(loaded["features_without_geometry"], 1);
    assert_eq!(cli.found("query p parks"), ["0,0,4,3\t0", "10,8,12,11\t2"]);
    assert_eq!(cli.ok("query p parks --at 4,3"), "0,0,4,3\t0\n");
    assert_eq!(cli.found("query p parks --window 2,2,20,20").len(), 2);
    assert_eq!(
        cli.ok("query p parks --window 2,2,20,20 --contained"),
        "10,8,12,11\t2\n"
    );
    cli.ok("load p areas parks.geojson --payload area");
    assert_eq!(
        cli.found("query p areas"),
        ["0,0,4,3\t40", "10,8,12,11\t60"]
    );
    // In the plane, if one says so.
    cli.ok("load p plane parks.geojson --kind hilbert --payload id");
    assert_eq!(
        cli.ok("query p plane --near 7,3"),
        "0,0,4,3\t7\t3\n10,8,12,11\t9\t5.831\n"
    );
    let features: serde_json::Value =
        serde_json::from_str(&cli.ok("query p plane --at 1,1 --geojson")).unwrap();
    let ring = &features["features"][0]["geometry"]["coordinates"][0];
    assert_eq!(
        ring.to_string(),
        "[[0.0,0.0],[4.0,0.0],[4.0,3.0],[0.0,3.0],[0.0,0.0]]"
    );
}

#[test]
fn indexes_of_every_geometry_are_created_changed_listed_and_dropped() {
    let cli = Cli::new();
    cli.ok("create p numbers");
    for (geometry, here, there) in [
        ("point2", "1,-2", "-3,4"),
        ("point3", "-1,2,3", "4,5,6.5"),
        ("box2", "-1,2,3,4", "0,0,1,1"),
        ("box3", "-1,2,3,4,5,6", "0,0,0,1,1,1"),
    ] {
        cli.ok(&format!("create p {geometry} --geometry {geometry}"));
        assert_eq!(cli.ok(&format!("insert p {geometry} {here} 5")), "");
        cli.ok(&format!("relocate p {geometry} 5 {here} {there}"));
        let absent = cli.fails(1, &format!("relocate p {geometry} 5 {here} {there}"));
        assert_eq!(absent, format!("{here} with this payload: not there\n"));
        assert_eq!(
            cli.ok(&format!("query p {geometry}")),
            format!("{there}\t5\n")
        );
        cli.fails(1, &format!("remove p {geometry} {there} 6"));
        cli.ok(&format!("remove p {geometry} {there} 5"));
        assert_eq!(cli.ok(&format!("query p {geometry}")), "");
        cli.ok(&format!("insert p {geometry} {here} 7"));
    }
    cli.ok("create p desks --geometry point2 --kind hilbert,extent=0:0:80:25");
    cli.ok("insert p desks 3,4 1");
    let listed = cli.json("--json list p");
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["object"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["numbers", "point2", "point3", "box2", "box3", "desks"]
    );
    assert_eq!(listed[0]["types"], "u64 to u64");
    assert_eq!(listed[5]["kind"], "hilbert,extent=0:0:80:25");
    let stat = cli.json("--json stat p");
    assert_eq!(stat["maps"][0]["map"], "numbers");
    assert_eq!(stat["spatials"][3]["spatial"], "box3");
    assert_eq!(stat["spatials"][3]["geometry"], "box3");
    assert_eq!(stat["spatials"][3]["records"], 1);
    let desks = cli.json("--json stat p desks");
    assert_eq!(
        (&desks["records"], &desks["bounds"]),
        (&1.into(), &"3,4,3,4".into())
    );
    assert!(cli.ok("stat p").contains("desks"));
    cli.ok("rename p desks tables");
    cli.ok("rename p numbers figures");
    let checked = cli.ok("check p");
    assert!(
        checked.contains("tables") && checked.contains("figures"),
        "{checked}"
    );
    cli.ok("drop p tables");
    cli.ok("rm p figures");
    cli.ok("shrink p");
    assert_eq!(cli.json("--json list p").as_array().unwrap().len(), 4);
    assert_eq!(cli.ok("query p box2"), "-1,2,3,4\t7\n");
}

#[test]
fn what_cannot_be_is_said_in_plain_words_and_changes_nothing() {
    let cli = Cli::new();
    cli.write("shops.csv", SHOPS);
    cli.write("parks.geojson", PARKS);
    cli.write("bad.csv", "lon,lat\n1,2\n3,north\n");
    cli.write("far.csv", "lon,lat\n1,2\n3,91\n");
    cli.write(
        "bad.geojson",
        r#"{"type": "Feature", "geometry": {"type": "Circle"}}"#,
    );
    cli.write(
        "deep.geojson",
        r#"{"type": "LineString", "coordinates": [1, 2]}"#,
    );
    for (line, said) in [
        ("load p s none.csv --lon lon --lat lat", "none.csv"),
        ("load p s none.geojson", "none.geojson"),
        (
            "load p s shops.csv --lon east --lat lat",
            "there is no column \"east\"",
        ),
        (
            "load p s bad.csv --lon lon --lat lat",
            "bad.csv: line 3, column 2 (\"lat\"): \"north\" is not a f64",
        ),
        (
            "load p s far.csv --lon lon --lat lat",
            "far.csv: line 3, column 2 (\"lat\"): 91 is out of range: latitudes are from -90 to 90",
        ),
        (
            "load p s shops.csv --lon lon --lat lat --payload name",
            "\"Umeda\" is not a u64",
        ),
        (
            "load p s shops.csv --lon lon --lat lat --kind lbtree",
            "spatial indexes are: hilbert",
        ),
        ("load p s shops.csv --kind hilbert", "--lon and --lat"),
        (
            "load p s bad.geojson",
            "bad.geojson: feature 0: \"Circle\" is no type of geometry",
        ),
        ("load p s deep.geojson", "not lists of numbers as deep"),
        (
            "load p s parks.geojson --geometry point2",
            "feature 0: it is no point; its bounding box fits an index of box2",
        ),
        (
            "load p s parks.geojson --payload name",
            "feature 0: there is no property \"name\"",
        ),
        (
            "load p s shops.csv --format geojson",
            "shops.csv is not JSON",
        ),
        (
            "load p s parks.geojson --format sosd --lon 1 --lat 2",
            "SOSD",
        ),
        ("create p s --kind hilbert", "say which with --geometry"),
        ("create p s --geometry box2 --kind apex", "is a map"),
        (
            "create p s --geometry point3 --kind hilbert,coordinates=lonlat",
            "",
        ),
    ] {
        let err = cli.fails(1, line);
        assert!(err.contains(said), "{line}: {err}");
        assert!(!cli.path("p").exists(), "{line}");
    }
    for line in [
        "create p s --geometry circle",
        "create p s --geometry point2 --kind hilbert,extent=1",
        "create p s --geometry point2 --key-type u64",
        "load p s shops.csv --lon lon",
        "query p s --contained",
        "query p s --k 3",
        "query p s --near 1,2 --window 1,2,3,4",
    ] {
        cli.fails(2, line);
    }
    cli.ok("create p m");
    cli.ok("create p plane --geometry point2");
    cli.ok("create p globe --geometry box2 --kind coordinates=lonlat");
    for (line, said) in [
        ("query p none", "there is no spatial index \"none\""),
        ("query p m", "\"m\" is a map, not a spatial index"),
        ("get p plane 1", "holds"),
        ("create p plane", "holds"),
        ("insert p plane 1,2,3 4", "has 3 numbers; a point2 is X,Y"),
        ("insert p plane 1,NaN 4", "NaN"),
        ("insert p globe 3,3,1,1 4", "(3, 3) to (1, 1)"),
        (
            "insert p globe 170,0,190,1 4",
            "longitudes are from -180 to 180",
        ),
        ("query p plane --near 1,2 --within 5km", "without a unit"),
        (
            "query p globe --near 1,2 --within 5miles",
            "is not a distance",
        ),
        ("query p globe --near 1,2 --within -5m", "-5"),
        ("query p globe --near 1,2 --within 5", "has no unit"),
        ("query p globe --near 1,2 --k 0", "no records"),
        (
            "load p plane shops.csv --lon lon --lat lat",
            "say --x and --y",
        ),
        (
            "load p globe shops.csv --x lon --y lat --geometry box2",
            "not a box2",
        ),
        ("draw p plane -o empty.svg", "nothing to draw"),
        ("rename p m plane", "plane"),
    ] {
        let err = cli.fails(1, line);
        assert!(err.contains(said), "{line}: {err}");
    }
    assert_eq!(cli.ok("query p plane") + &cli.ok("query p globe"), "");
    cli.ok("check p");
}

#[test]
fn a_picture_has_dots_and_the_rectangles_of_leaves() {
    let cli = Cli::new();
    let rows: String = (0..3000)
        .map(|i| format!("{},{}\n", f64::from(i % 60) * 1.5, f64::from(i / 60)))
        .collect();
    cli.write("grid.csv", &rows);
    cli.ok("load p grid grid.csv --no-header --x 1 --y 2");
    let facts = cli.json("--json draw p grid -o grid.svg --dots 1000");
    assert_eq!(
        (&facts["records"], &facts["records_drawn"]),
        (&3000.into(), &1000.into())
    );
    let svg = std::fs::read_to_string(cli.path("grid.svg")).unwrap();
    let leaves = facts["leaves"].as_u64().unwrap();
    assert!(leaves > 50, "{leaves}");
    // One more is the background.
    assert_eq!(svg.matches("<rect ").count() as u64, leaves + 1);
    assert_eq!(svg.matches("h0").count(), 1000);
    assert!(
        svg.contains("grid (point2), records: 3,000, leaves: "),
        "{}",
        &svg[..400]
    );
    assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    // A part of it.
    let part = cli.json("--json draw p grid -o part.svg --window 0,0,15,10");
    assert_eq!(part["records"], 11 * 11);
    assert!(part["leaves"].as_u64().unwrap() < leaves / 2, "{part}");
    // One point, and boxes.
    cli.ok("create p one --geometry point3");
    cli.ok("insert p one 5,5,5 1");
    cli.ok("draw p one -o one.svg");
    cli.ok("create p boxes --geometry box2");
    cli.ok("insert p boxes -inf,0,1,1 1");
    cli.ok("insert p boxes 0,0,1,1 2");
    cli.ok("draw p boxes -o boxes.svg");
    for name in ["one.svg", "boxes.svg"] {
        let svg = std::fs::read_to_string(cli.path(name)).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    // A picture is drawn again, and never over a pool, by whatever path.
    cli.ok("draw p one -o one.svg");
    cli.ok("create q m");
    std::os::unix::fs::symlink("p", cli.path("link.svg")).unwrap();
    for target in ["p", "link.svg", "q"] {
        let said = cli.fails(1, &format!("draw p grid -o {target}"));
        assert!(said.contains("is a pool"), "{said}");
    }
    cli.write("p.log", "INDELLOG and more");
    let said = cli.fails(1, "draw p grid -o p.log");
    assert!(said.contains("is the log of a pool"), "{said}");
    cli.ok("check p");
    cli.ok("check q");
}

#[test]
fn coordinates_come_back_to_the_last_bit() {
    let cli = Cli::new();
    let place = "1.9021754086561486,94.95886283158103";
    let geojson = format!("{{\"type\":\"Point\",\"coordinates\":[{place}]}}");
    cli.write("place.geojson", &geojson);
    cli.ok("load p places place.geojson --kind hilbert");
    assert_eq!(cli.ok("query p places"), format!("{place}\t0\n"));
    cli.write("again.geojson", &cli.ok("query p places --geojson"));
    cli.ok("load p again again.geojson --kind hilbert");
    assert_eq!(cli.ok("query p again"), format!("{place}\t0\n"));
}
