//! Plants the bugs in the code whose names contain the argument, and tells how each was found.

use indelible_crash::planted::{Mutation, bugs_in_code, hunt_in_code};
use std::time::Instant;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let all = bugs_in_code();
    let wanted = all
        .iter()
        .filter(|mutation| mutation.to_string().contains(&wanted));
    std::thread::scope(|scope| {
        for mutation in wanted {
            let &Mutation::Code(bug, kind) = mutation else {
                continue;
            };
            scope.spawn(move || {
                let begin = Instant::now();
                let hunt = hunt_in_code(bug, kind);
                let problem = hunt.failure.map(|failure| failure.problem);
                println!(
                    "{mutation}: {problem:?} after {} images, {:?}",
                    hunt.images,
                    begin.elapsed()
                );
            });
        }
    });
}
