//! The recorder of the library notes what was written, flushed and fenced, in order, with name and source.

use indelible_crash::indelible::pmem::trace::{self, Action};
use indelible_crash::indelible::pmem::{Cell, Medium, Pm};

#[repr(C, align(64))]
struct Line([Cell; 8]);

#[test]
fn stores_flushes_and_fences_are_recorded_in_order_with_name_and_source() {
    let pm = Pm::new(Medium::Dram);
    let line = Line(std::array::from_fn(|_| Cell::new(0)));
    let here = &line.0[3];
    trace::start(Vec::new());
    pm.commit(here, 9, "first");
    pm.store(here, 10);
    pm.named("second").persist(here);
    let events = trace::stop();
    pm.commit(here, 11, "third");
    assert!(trace::stop().is_empty());
    let address = std::ptr::from_ref(here) as usize;
    let store = |value, before| Action::Store {
        address,
        value,
        before,
    };
    let flush = Action::Flush {
        address: address & !63,
        bytes: 64,
    };
    let expected = [
        (store(9, 0), "first"),
        (flush, "first"),
        (Action::Fence, "first"),
        (store(10, 9), ""),
        (flush, "second"),
        (Action::Fence, "second"),
    ];
    let recorded: Vec<_> = events
        .iter()
        .map(|event| (event.action, event.name))
        .collect();
    assert_eq!(recorded, expected);
    let is_here = |file: &str| file.ends_with("recorder.rs");
    assert!(events.iter().all(|event| is_here(event.source.file())));
}
