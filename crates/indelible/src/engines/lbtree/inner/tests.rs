//! Nodes find what they hold.

use super::*;
use crate::engines::arena::Arena;
use crate::kernels::{Kernel, SimdLevel, dispatch};
use proptest::prelude::*;

struct Find<'a>(&'a Inner, u64);

impl Kernel for Find<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        self.0.find::<S>(self.1)
    }
}

/// The node holds `model` and finds it.
fn assert_holds(node: &Inner, model: &[(u64, u64)]) {
    assert_eq!(node.children(), model);
    assert_eq!(node.count(), model.len());
    let shape = node.shape();
    let mut slot = Some(0);
    for (i, &(key, _)) in model.iter().enumerate() {
        let here = slot.expect("a slot for every child");
        assert_eq!(node.key(here), key);
        assert_eq!(shape.before(here).is_some(), i > 0);
        slot = shape.after(here);
        assert!(slot.is_none_or(|next| shape.before(next) == Some(here)));
    }
    assert_eq!(slot, None);
    let probes = model
        .iter()
        .flat_map(|&(k, _)| [k.saturating_sub(1), k, k.saturating_add(1)])
        .chain([0, u64::MAX]);
    for probe in probes {
        let expected = model.partition_point(|child| child.0 <= probe).max(1) - 1;
        for level in SimdLevel::available() {
            let slot = dispatch(level, Find(node, probe));
            assert_eq!(
                (node.key(slot), node.word(slot)),
                model[expected],
                "{level:?} {probe} in {model:?}"
            );
        }
    }
}

/// The numbers below `FANOUT - 1`, ascending, descending or in any order.
fn orders() -> impl Strategy<Value = Vec<u64>> {
    let ascending: Vec<u64> = (0..FANOUT as u64 - 1).collect();
    let descending: Vec<u64> = ascending.iter().rev().copied().collect();
    prop_oneof![
        Just(ascending.clone()),
        Just(descending),
        Just(ascending).prop_shuffle()
    ]
}

proptest! {
    #[test]
    fn nodes_find_what_they_hold_at_every_size_and_at_the_ends_of_the_domain(
        order in orders(),
        removals in orders(),
        top in prop_oneof![Just(1_000), Just(u64::MAX)],
    ) {
        let arena = Arena::<Inner>::new();
        let (node, _guard) = arena.alloc(0);
        node.refill_leaves(&[(0, Child::leaf(Offset::from_word(256)))]);
        let mut model = vec![(0, 256)];
        for key in order.iter().map(|i| top - 3 * i) {
            node.insert_leaf(dispatch(SimdLevel::Plain, Find(node, key)), key, Child::leaf(Offset::from_word(key << 8)));
            model.insert(model.partition_point(|child| child.0 < key), (key, key << 8));
            assert_holds(node, &model);
        }
        prop_assert!(node.is_full());
        for key in removals.iter().map(|i| top - 3 * i) {
            node.remove(dispatch(SimdLevel::Plain, Find(node, key)));
            model.retain(|child| child.0 != key);
            assert_holds(node, &model);
        }
    }
}
