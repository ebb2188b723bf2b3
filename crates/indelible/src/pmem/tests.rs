use super::*;

#[repr(C, align(256))]
struct Lines([Cell; 24]);

fn lines() -> Lines {
    Lines(std::array::from_fn(|_| Cell::new(0)))
}

fn media() -> Vec<Pm> {
    let mut pens = vec![
        Pm::new(Medium::Dram),
        Pm::new(Medium::Process),
        Pm::new(Medium::Pmem),
    ];
    pens.push(Pm::new(Medium::PmemEadr));
    pens.push(Pm::with_instruction(
        Medium::Pmem,
        FlushInstruction::Clflush,
    ));
    pens.push(Pm::with_instruction(Medium::Pmem, FlushInstruction::None));
    pens
}

#[test]
fn every_medium_writes_what_it_is_told() {
    for pm in media() {
        let memory = lines();
        pm.store(&memory.0[0], 7);
        pm.commit(&memory.0[1], u64::MAX, "test");
        pm.stream(&memory.0[8..24], &[3; 16]);
        pm.fence();
        assert_eq!(memory.0[0].load(), 7);
        assert_eq!(memory.0[1].load_acquire(), u64::MAX);
        assert!(memory.0[8..].iter().all(|cell| cell.load() == 3));
    }
}

#[test]
fn lines_cover_unaligned_ranges() {
    assert_eq!(flush::lines_of(0, 64), 0..64);
    assert_eq!(flush::lines_of(8, 8), 0..64);
    assert_eq!(flush::lines_of(56, 16), 0..128);
    assert_eq!(flush::lines_of(64, 0), 64..64);
}

#[cfg(feature = "count")]
#[test]
fn counters_count_lines_fences_and_streamed_lines_on_every_medium() {
    for pm in media() {
        let memory = lines();
        pm.fence(); // What was written before lies in a block of its own.
        let before = count::here();
        pm.persist(&memory.0[..16]);
        pm.commit(&memory.0[0], 1, "test");
        pm.stream(&memory.0[16..], &[0; 8]);
        let cost = count::here() - before;
        assert_eq!(
            cost,
            count::Counts {
                lines_flushed: 3,
                fences: 2,
                lines_streamed: 1,
                blocks_written: 3,
                bytes_allocated: 0,
            }
        );
    }
}

#[cfg(feature = "trace")]
#[test]
fn trace_records_stores_flushes_and_fences_in_order_with_their_source() {
    let pm = Pm::new(Medium::Dram);
    let memory = lines();
    let here = &memory.0[3];
    trace::start(Vec::new());
    pm.commit(here, 9, "test");
    pm.commit(here, 10, "test");
    let mine = trace::stop();
    pm.commit(here, 11, "test");
    assert!(trace::stop().is_empty());
    let address = std::ptr::from_ref(here) as usize;
    assert_eq!(
        mine[0].action,
        trace::Action::Store {
            address,
            value: 9,
            before: 0
        }
    );
    assert_eq!(
        mine[1].action,
        trace::Action::Flush {
            address: address & !63,
            bytes: 64
        }
    );
    assert_eq!(mine[2].action, trace::Action::Fence);
    assert_eq!(
        mine[3].action,
        trace::Action::Store {
            address,
            value: 10,
            before: 9
        }
    );
    assert_eq!(mine.len(), 6);
    assert!(
        mine.iter()
            .all(|event| event.source.file().ends_with("tests.rs"))
    );
}
