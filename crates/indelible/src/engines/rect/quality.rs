//! What makes an R-tree good: where a box grows least, and how the entries of a full node are divided.
//!
//! Entries are divided as by the R*-tree (Beckmann, Kriegel, Schneider and Seeger, SIGMOD 1990): along the axis on which the margins of both
//! halves are least in sum over all cuts, at the cut where the halves overlap least.

use crate::spatial::{Rect, centre};

/// Each half of a node gets at least one entry in so many, as in the R*-tree: 30 %.
const LEAST_SHARE: f64 = 0.3;

/// The volume of a box on its axes, and the sum of its sides. Neither is NaN.
pub(in crate::engines) fn volume_and_margin(rect: &Rect, axes: usize) -> (f64, f64) {
    let side = |axis: usize| {
        let (low, high) = (rect.low[axis], rect.high[axis]);
        // The side of a box that lies at one infinity is zero.
        if low < high { high - low } else { 0.0 }
    };
    let volume = (0..axes).map(side).fold(1.0, |volume, side| {
        // Infinity times zero is no number.
        if side == 0.0 { 0.0 } else { volume * side }
    });
    let volume = if volume.is_nan() { 0.0 } else { volume };
    (volume, (0..axes).map(side).sum())
}

/// What two boxes have in common; inverted on an axis on which that is nothing.
pub(in crate::engines) fn common(a: &Rect, b: &Rect) -> Rect {
    Rect {
        low: std::array::from_fn(|axis| a.low[axis].max(b.low[axis])),
        high: std::array::from_fn(|axis| a.high[axis].min(b.high[axis])),
    }
}

/// What it costs that a box grows: less is better.
#[derive(Clone, Copy, Debug)]
pub(in crate::engines) struct Cost([f64; 3]);

impl Cost {
    /// The cost of making `old` contain `rect`: by how much the box grows, in volume, then in margin; then its volume.
    pub(in crate::engines) fn of_growth(old: &Rect, rect: &Rect, axes: usize) -> Self {
        let (volume, margin) = volume_and_margin(old, axes);
        let (new_volume, new_margin) = volume_and_margin(&old.join(rect), axes);
        Self([
            growth(volume, new_volume),
            growth(margin, new_margin),
            volume,
        ])
    }

    pub(in crate::engines) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let order = self.0.iter().zip(other.0);
        let order = order.map(|(a, b)| a.total_cmp(&b));
        order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    }
}

/// By how much a measure grows. Infinite if it is infinite afterwards.
fn growth(before: f64, after: f64) -> f64 {
    if after == f64::INFINITY {
        after
    } else {
        after - before
    }
}

/// Divides boxes into two parts, as numbers.
pub(in crate::engines) fn divide(rects: &[Rect], axes: usize) -> [Vec<usize>; 2] {
    let cuts = axes_and_cuts(rects, axes);
    let margins = |cuts: &[Cut]| cuts.iter().map(|cut| cut.margins).sum::<f64>();
    let (order, cuts) = cuts
        .into_iter()
        .min_by(|a, b| margins(&a.1).total_cmp(&margins(&b.1)))
        .expect("invariant: there are axes");
    let order_of = |a: &Cut, b: &Cut| {
        let by_volume = a.overlap.total_cmp(&b.overlap);
        by_volume.then(a.margins.total_cmp(&b.margins))
    };
    // The first ones are in the middle: where boxes do not tell, halves are equal.
    let cut = cuts.into_iter().min_by(order_of).map_or(1, |cut| cut.at);
    [order[..cut].to_vec(), order[cut..].to_vec()]
}

/// A way to divide boxes in some order.
struct Cut {
    /// The number of boxes of the first half.
    at: usize,
    /// The sum of the margins of both halves.
    margins: f64,
    /// The volume that both halves have in common.
    overlap: f64,
}

/// For each axis the order of the boxes along it, and all cuts, those near the middle first.
fn axes_and_cuts(rects: &[Rect], axes: usize) -> Vec<(Vec<usize>, Vec<Cut>)> {
    let count = rects.len();
    let least = ((count as f64 * LEAST_SHARE) as usize).max(1);
    let of_axis = |axis: usize| {
        let mut order: Vec<usize> = (0..count).collect();
        let place = |&at: &usize| {
            let rect = rects[at].window::<crate::Box3>();
            centre(&rect)[axis]
        };
        order.sort_by(|a, b| place(a).total_cmp(&place(b)));
        let join = |all: &Rect, at: &usize| all.join(&rects[*at]);
        let mut cuts: Vec<usize> = (least..=count - least).collect();
        cuts.sort_by_key(|&at| (at * 2).abs_diff(count));
        let cut = |at: usize| {
            let (first, second) = order.split_at(at);
            let [first, second] = [first, second]
                .map(|half| half.iter().fold(Rect::NOTHING, |all, at| join(&all, at)));
            Cut {
                at,
                margins: volume_and_margin(&first, axes).1 + volume_and_margin(&second, axes).1,
                overlap: volume_and_margin(&common(&first, &second), axes).0,
            }
        };
        let cuts = cuts.into_iter().map(cut).collect();
        (order, cuts)
    };
    (0..axes).map(of_axis).collect()
}
