use indelible_crash::planted::{Hunter, Mutation};
use std::time::Instant;
fn main() {
    let want = std::env::args().nth(1).unwrap_or_default();
    let t = Instant::now();
    let hunter = Hunter::new();
    println!("recorded in {:?}", t.elapsed());
    for m in hunter.mutations() {
        if !m.to_string().contains(&want) {
            continue;
        }
        if std::env::var("CODE").is_ok() && !matches!(m, Mutation::Code(..)) {
            continue;
        }
        if std::env::var("NOCODE").is_ok() && matches!(m, Mutation::Code(..)) {
            continue;
        }
        let t = Instant::now();
        let h = hunter.hunt(m);
        let e = m.excuse();
        let out = match (&h.failure, e) {
            (Some(f), None) => format!("found: {}", f.problem),
            (Some(_), Some(_)) => "FOUND ALTHOUGH EXCUSED".into(),
            (None, Some(e)) => format!("harmless: {e}"),
            _ => "NOT FOUND".into(),
        };
        println!(
            "{m}\n      {:?} {} images, {}",
            t.elapsed(),
            h.images,
            out.chars().take(110).collect::<String>()
        );
        if std::env::var("FULL").is_ok() {
            if let Some(f) = h.failure {
                println!("{f}");
            }
        }
    }
}
