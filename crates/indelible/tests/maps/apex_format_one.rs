//! APEX maps of format 1, in which the marker of free slots is zero in most nodes: they open, and stay maps of format 1.

use indelible::{ApexOptions, Map, Pool};
use std::collections::BTreeMap;
use std::path::Path;

const EXTENT: usize = 2 << 20;
/// Offset of the word with the object's format in the first entry of the catalog.
const FORMAT: usize = 8192 + 96;
/// The low 16 bits of a data node's first word.
const DATA_MARK: u64 = 0xda7a;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Offsets of data nodes, also of some that are not in use any more.
fn data_nodes(bytes: &[u8]) -> Vec<usize> {
    let blocks = (EXTENT..bytes.len()).step_by(512);
    blocks
        .filter(|&at| word(bytes, at) & 0xffff == DATA_MARK)
        .collect()
}

/// Turns the empty map of a closed pool into one of format 1.
fn turn_back(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    assert_eq!(word(&bytes, FORMAT), 2);
    bytes[FORMAT..FORMAT + 8].fill(0);
    let nodes = data_nodes(&bytes);
    assert_eq!(nodes.len(), 2);
    for node in nodes {
        let (low, marker) = (word(&bytes, node + 48), word(&bytes, node + 56));
        bytes[node + 56..node + 64].fill(0);
        for slot in (node + 128..node + 512).step_by(16) {
            assert_eq!(word(&bytes, slot), marker, "a free slot");
            if low != 0 {
                bytes[slot..slot + 8].fill(0);
            }
        }
    }
    std::fs::write(path, bytes).unwrap();
}

fn assert_holds(map: &Map<u64, u64>, records: &BTreeMap<u64, u64>) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), records.len() as u64);
    let found = map.iter().map(Result::unwrap);
    assert!(found.eq(records.iter().map(|(k, v)| (*k, *v))));
}

#[test]
fn a_map_of_format_1_opens_grows_shrinks_and_stays_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.pool");
    let pool = Pool::create(&path).unwrap();
    pool.map_with::<u64, u64>("m", ApexOptions::default())
        .unwrap();
    pool.close().unwrap();
    turn_back(&path);
    let mut records = BTreeMap::new();
    for round in 0..3 {
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert_holds(&map, &records);
        for i in 0..20_000 {
            let key = match (round, i) {
                (_, 0) => 0,
                (_, 1) => u64::MAX,
                (0, _) => mix(i),
                (1, _) => mix(i / 300) & !0xfffff | i,
                _ => i,
            };
            assert_eq!(map.insert(key, i).unwrap(), records.insert(key, i));
        }
        assert_holds(&map, &records);
        let gone: Vec<u64> = records
            .keys()
            .copied()
            .filter(|key| !mix(!key).is_multiple_of(4))
            .collect();
        for key in gone {
            assert_eq!(map.remove(key).unwrap(), records.remove(&key));
        }
        pool.shrink().unwrap();
        assert_holds(&map, &records);
        drop(map);
        pool.close().unwrap();
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(word(&bytes, FORMAT), 0);
    for node in data_nodes(&bytes) {
        assert_eq!(word(&bytes, node + 56), 0, "{node:#x}");
    }
}
