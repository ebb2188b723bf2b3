//! The example's bug is found, and the report says where it is.

#[path = "../examples/linked_list.rs"]
mod linked_list;

#[test]
fn the_bug_in_the_linked_list_is_found_and_named() {
    let report = linked_list::report().expect("a failure");
    println!("{report}");
    assert!(report.contains("in operation 0: 1"), "the operation");
    assert!(report.contains("a fence"), "the event");
    assert!(report.contains("line 0x40"), "the line");
    assert!(report.contains("linked_list.rs:"), "the store's source");
    assert!(
        report.contains("flushed, but not fenced"),
        "what is missing"
    );
}
