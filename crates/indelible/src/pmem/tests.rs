use super::*;

#[repr(C, align(256))]
struct Lines([Cell; 24]);

fn lines() -> Lines {
    Lines(std::array::from_fn(|_| Cell::new(0)))
}

fn media() -> Vec<Pm> {
    let mut writers = vec![
        Pm::new(Medium::Dram),
        Pm::new(Medium::Process),
        Pm::new(Medium::Pmem),
    ];
    writers.push(Pm::new(Medium::PmemEadr));
    writers.push(Pm::with_instruction(
        Medium::Pmem,
        FlushInstruction::Clflush,
    ));
    writers.push(Pm::with_instruction(Medium::Pmem, FlushInstruction::None));
    writers
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
