//! Images of data nodes before they are written.

use super::*;
use crate::engines::apex::layout::{SLOT_BYTES, line_pair_of};
use crate::engines::apex::model::Model;
use proptest::prelude::*;

#[test]
fn an_insert_prefers_the_line_pair_of_its_predicted_slot() {
    let slots = |slots: &[usize]| slots.iter().fold(0, |mask, slot| mask | 1 << (slot * 2));
    assert_eq!(choose_free_slot(slots(&[0, 2, 3, 5]), 1), Some(2));
    assert_eq!(choose_free_slot(slots(&[0, 9]), 1), Some(0));
    assert_eq!(choose_free_slot(slots(&[9, 12]), 5), Some(9));
    // At the end of a group the window begins before the line pair of the predicted slot.
    assert_eq!(choose_free_slot(slots(&[2]), 14), Some(2));
    assert_eq!(choose_free_slot(slots(&[2, 8]), 14), Some(8));
    assert_eq!(choose_free_slot(0, 3), None);
}

/// The image of a node that has so many records in each line pair.
fn image_of(counts: &[u64]) -> (NodeImage, Vec<Record>) {
    let primary = counts.len() * LINE_PAIR_SLOTS;
    let (stash, low, high) = (WINDOW_SLOTS, 1000, 1000 + 100 * primary as u64 - 1);
    let keys = (0..).zip(counts).flat_map(|(pair, &count)| {
        (0..count).map(move |key| low + pair * 100 * LINE_PAIR_SLOTS as u64 + key)
    });
    let records: Vec<Record> = keys.map(|key| (key, !key)).collect();
    let plan = DataPlan {
        first: 0,
        last: records.len(),
        low,
        high,
        bytes: HEADER_BYTES + ((primary + stash) as u64) * SLOT_BYTES,
        primary,
        stash,
        model: Model::fit(&[], primary, low, high),
    };
    (NodeImage::new(&plan, &records, Format::Two), records)
}

fn stashed(image: &NodeImage) -> usize {
    image.stashed.len() + image.beyond_stash.len()
}

#[test]
fn a_line_pair_displaces_records_to_take_those_of_the_one_before_if_that_helps() {
    // One record too many, and of the line pairs behind it only the last one has a free slot.
    let (image, records) = image_of(&[9, 8, 8, 7]);
    assert_eq!((stashed(&image), image.groups[0]), (0, (32, 0b0111)));
    let slots = image.words[HEADER_WORDS..].as_chunks().0;
    let in_order = records.iter().map(|&(key, value)| [key, value]);
    assert!(slots[..GROUP_SLOTS].iter().copied().eq(in_order));
    // The displaced records of the last line pair find free slots in the one before.
    let (image, _) = image_of(&[8, 8, 6, 10]);
    assert_eq!((stashed(&image), image.groups[0]), (0, (32, 0b1000)));
    // There are no slots for three records. Of the others, one is displaced.
    let (image, _) = image_of(&[9, 9, 7, 10]);
    assert_eq!((stashed(&image), image.groups[0]), (3, (35, 0b1011)));
}

/// The records of an image, after checking that each lies where a lookup finds it; and for each group the number of
/// its records and its displaced bits.
fn contents(image: &NodeImage) -> (Vec<Record>, Vec<(usize, u64)>) {
    let in_stash = image.stashed.iter().map(|&(_, key, _)| (key, !key));
    let beyond = image.beyond_stash.iter().map(|&(_, record)| record);
    let mut records: Vec<Record> = in_stash.chain(beyond).collect();
    let mut groups = vec![(0, 0); image.groups.len()];
    let mut count = |predicted: usize, is_displaced: bool| {
        let (count, displaced) = &mut groups[predicted / GROUP_SLOTS];
        *count += 1;
        *displaced |= if is_displaced {
            DataNode::line_pair_bit(predicted)
        } else {
            0
        };
    };
    for &(key, _) in &records {
        count(image.geometry.model.predict(key), true);
    }
    let slots: &[[u64; 2]] = image.words[HEADER_WORDS..].as_chunks().0;
    let pairs = slots[..image.geometry.primary].chunks(LINE_PAIR_SLOTS);
    for (first, pair) in (0..).step_by(LINE_PAIR_SLOTS).zip(pairs) {
        let taken = pair.iter().filter(|slot| slot[0] != image.geometry.marker);
        assert!(taken.clone().is_sorted());
        for &[key, value] in taken {
            let predicted = image.geometry.model.predict(key);
            assert!((window_of(predicted)..window_of(predicted) + WINDOW_SLOTS).contains(&first));
            count(predicted, first != line_pair_of(predicted));
            records.push((key, value));
        }
    }
    for (group, &(_, displaced)) in slots[..image.geometry.primary]
        .chunks(GROUP_SLOTS)
        .zip(&groups)
    {
        let last_pair = group.len() - LINE_PAIR_SLOTS;
        let may_end = displaced & DataNode::line_pair_bit(last_pair) != 0;
        let in_order = if may_end { last_pair } else { group.len() };
        let taken = group[..in_order]
            .iter()
            .filter(|slot| slot[0] != image.geometry.marker);
        assert!(taken.is_sorted());
    }
    records.sort_unstable();
    (records, groups)
}

fn counts() -> impl Strategy<Value = Vec<u64>> {
    let count = prop_oneof![8 => 0_u64..12, 1 => 0_u64..100];
    proptest::collection::vec(count, 2..3 * GROUP_LINE_PAIRS)
}

proptest! {
    #[test]
    fn a_node_that_is_laid_out_has_every_record_where_it_is_looked_for(counts in counts()) {
        // No slot of the last line pair of a node is predicted: its window might leave the node (data I7).
        let (image, records) = image_of(&[&counts[..], &[0]].concat());
        prop_assert_eq!(contents(&image), (records, image.groups));
    }
}
