use indelible_crash::planted::*;
fn main() {
    let only = std::env::args().nth(1);
    std::panic::set_hook(Box::new(|_| {}));
    let start = std::time::Instant::now();
    let hunter = Hunter::new();
    let all = hunter.mutations();
    println!("{} mutations", all.len());
    for m in all {
        if only.as_ref().is_some_and(|o| !m.to_string().contains(o)) {
            continue;
        }
        let t = std::time::Instant::now();
        let h = hunter.hunt(m);
        let word = match &h.failure {
            Some(f) => f.problem.chars().take(100).collect::<String>(),
            None => m
                .excuse()
                .map_or("SURVIVED".into(), |e| format!("excused: {e}")),
        };
        println!("{:.2?} {} images: {m} => {word}", t.elapsed(), h.images);
        if only.is_some() {
            if let Some(f) = h.failure {
                println!("{f}")
            }
        }
    }
    println!("{:?}", start.elapsed());
}
