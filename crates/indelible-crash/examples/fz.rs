use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
fn bytes(seed: u64, most: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    let length = random.random_range(0..most);
    (0..length).map(|_| random.random()).collect()
}
fn main() {
    let a: Vec<u64> = std::env::args()
        .skip(1)
        .map(|a| a.parse().unwrap())
        .collect();
    let mut t = [(0.0, 0); 2];
    for seed in a[1]..a[2] {
        let mut data = bytes(seed, if a[0] == 0 { 160 } else { 24 });
        if a[0] == 1 && data.len() > 0 && std::env::var("APEX").is_ok() {
            data[0] |= 16;
        }
        let s = std::time::Instant::now();
        let k = data
            .first()
            .map_or(0, |h| if a[0] == 0 { h >> 3 & 1 } else { h >> 4 & 1 })
            as usize;
        if a[0] == 0 {
            indelible_crash::fuzz::operations(&data)
        } else {
            if std::panic::catch_unwind(|| indelible_crash::fuzz::damaged_pool(&data)).is_err() {
                println!("PANIC {seed} {data:?}");
            }
        }
        let e = s.elapsed().as_secs_f64();
        t[k].0 += e;
        t[k].1 += 1;
        if e > 1.0 {
            println!("{seed} kind {k} {e}");
        }
    }
    println!("{t:?}");
}
