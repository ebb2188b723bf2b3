use super::*;
use crate::spatial::Rect;
use proptest::prelude::*;

fn grid(axes: usize) -> Grid {
    let extent = Rect {
        low: [0.0; 3],
        high: [1.0; 3],
    };
    Grid::new(&extent, axes)
}

/// A window of a few cells in a corner of the grid, so that all of its codes can be listed.
fn small_window() -> impl Strategy<Value = (usize, [u32; 3], [u32; 3])> {
    (
        2usize..=3,
        prop::array::uniform3((0u32..20, 0u32..8)),
        any::<bool>(),
    )
        .prop_map(|(axes, ends, far)| {
            let middle = 1 << (hilbert::bits(axes) - 1);
            let base = if far { middle - 10 } else { 0 };
            let mut low = ends.map(|(a, _)| base + a);
            let mut high = ends.map(|(a, size)| base + a + size);
            if axes == 2 {
                (low[2], high[2]) = (0, 0);
            }
            (axes, low, high)
        })
}

fn codes_of(grid: &Grid, low: [u32; 3], high: [u32; 3]) -> Vec<u64> {
    let mut codes = Vec::new();
    for x in low[0]..=high[0] {
        for y in low[1]..=high[1] {
            for z in low[2]..=high[2] {
                codes.push(if grid.axes() == 2 {
                    hilbert::encode2(x, y)
                } else {
                    hilbert::encode3(x, y, z)
                });
            }
        }
    }
    codes.sort_unstable();
    codes
}

#[test]
fn children_follow_one_another_and_fill_their_parent() {
    for axes in [2, 3] {
        let grid = grid(axes);
        let mut at = Quadrant::all(&grid);
        assert_eq!(at.codes(), (0, grid.last_code()));
        for turn in 0.. {
            if at.is_cell() {
                break;
            }
            let children: Vec<_> = at.children().collect();
            assert_eq!(children.len(), 1 << axes);
            assert_eq!(children[0].codes().0, at.codes().0);
            assert_eq!(children.last().unwrap().codes().1, at.codes().1);
            for pair in children.windows(2) {
                assert_eq!(pair[0].codes().1 + 1, pair[1].codes().0);
            }
            for child in &children {
                let (low, high) = child.cells();
                assert!(at.meets(&low, &high).0);
                let code = child.codes().0;
                let cell = grid.decode(code);
                assert!((0..3).all(|axis| low[axis] <= cell[axis] && cell[axis] <= high[axis]));
            }
            at = children[turn % children.len()];
        }
        assert_eq!(at.codes().0, at.codes().1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_next_code_in_a_window_is_that_of_a_list((axes, low, high) in small_window(), from: u64, close: u64) {
        let grid = grid(axes);
        let codes = codes_of(&grid, low, high);
        let near = codes[(close % codes.len() as u64) as usize];
        for from in [0, from, near, near.saturating_add(1), near.saturating_sub(1), near.saturating_add(close % 100), u64::MAX] {
            let wanted = codes.iter().copied().find(|&code| code >= from);
            prop_assert_eq!(grid.next_in_window(from, low, high), wanted, "from {}", from);
        }
    }

    #[test]
    fn the_next_code_in_a_large_window(axes in 2usize..=3, a: [u32; 3], b: [u32; 3], from: u64) {
        let grid = grid(axes);
        let shift = 32 - hilbert::bits(axes);
        let (mut low, mut high): ([u32; 3], [u32; 3]) =
            (std::array::from_fn(|i| a[i].min(b[i]) >> shift), std::array::from_fn(|i| a[i].max(b[i]) >> shift));
        if axes == 2 {
            (low[2], high[2]) = (0, 0);
        }
        let inside = |code| {
            let cell = grid.decode(code);
            (0..3).all(|axis| low[axis] <= cell[axis] && cell[axis] <= high[axis])
        };
        let from = from & grid.last_code();
        if let Some(code) = grid.next_in_window(from, low, high) {
            prop_assert!(code >= from && inside(code));
            // Where the curve enters the window, the code before is outside.
            prop_assert!(code == from || !inside(code - 1));
        } else {
            prop_assert!(!inside(from) && !inside(grid.last_code()));
        }
        let empty = grid.next_in_window(from, high.map(|cell| cell.saturating_add(1)), low);
        prop_assert_eq!(empty, None);
    }

    #[test]
    fn a_covering_is_the_interval(axes in 2usize..=3, a: u64, b: u64, shift in 0u32..64) {
        let grid = grid(axes);
        let a = a & grid.last_code();
        let b = if shift % 2 == 0 { b & grid.last_code() } else { a.saturating_add(b >> shift).min(grid.last_code()) };
        let (first, last) = (a.min(b), a.max(b));
        let quadrants: Vec<_> = grid.covering(first, last).collect();
        prop_assert_eq!(quadrants[0].codes().0, first);
        prop_assert_eq!(quadrants.last().unwrap().codes().1, last);
        for pair in quadrants.windows(2) {
            prop_assert_eq!(pair[0].codes().1 + 1, pair[1].codes().0);
        }
        prop_assert!(quadrants.len() <= 2 * ((1 << axes) - 1) * hilbert::bits(axes) as usize);
        for quadrant in quadrants {
            // It is the largest one: its parent, if it has one, is not in the interval.
            let (start, end) = quadrant.codes();
            let size = (end - start).wrapping_add(1);
            if size != 0 && end - start < grid.last_code() {
                let parent = start & !(((size as u128) << axes) as u64).wrapping_sub(1);
                let parent_end = parent | ((size as u128) << axes).wrapping_sub(1) as u64;
                prop_assert!(parent < first || parent_end > last);
            }
        }
    }
}

#[test]
fn the_whole_interval_is_one_quadrant() {
    for axes in [2, 3] {
        let grid = grid(axes);
        let all: Vec<_> = grid.covering(0, grid.last_code()).collect();
        assert_eq!(all, [Quadrant::all(&grid)]);
        assert_eq!(grid.covering(5, 4).count(), 0);
        assert_eq!(grid.covering(7, 7).count(), 1);
    }
}
