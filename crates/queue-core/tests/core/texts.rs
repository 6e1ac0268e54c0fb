//! Texts from outside: refused where they are input, made storable where they are reports.

use proptest::prelude::*;
use queue_core::{Failure, MAX_CODE_CHARS, MAX_ERROR_CHARS, checked_text, stored_text};

#[test]
fn nul_becomes_the_replacement_character() {
    assert_eq!(stored_text("a\0b\0", 10), "a\u{FFFD}b\u{FFFD}");
}

#[test]
fn text_is_cut_at_a_character_and_never_inside_one() {
    assert_eq!(stored_text("\u{1F980}\u{1F980}\u{1F980}", 2), "\u{1F980}\u{1F980}");
    assert_eq!(stored_text("aäb", 2), "aä");
    assert_eq!(stored_text("abc", 3), "abc");
    assert_eq!(stored_text("abc", 0), "");
}

#[test]
fn input_is_bounded_in_characters_not_bytes() {
    assert!(checked_text("f", &"ä".repeat(5), 5).is_ok());
    assert_eq!(checked_text("f", &"ä".repeat(6), 5).expect_err("long").to_string(), "f: has more than 5 characters");
    assert_eq!(checked_text("f", "a\0", 5).expect_err("nul").to_string(), "f: has a NUL character");
}

#[test]
fn failure_of_any_wording_is_storable() {
    let failure = Failure::new(&"\0".repeat(1_000), &"\u{1F980}\0".repeat(5_000), true);
    assert_eq!(failure.code.chars().count(), MAX_CODE_CHARS);
    assert_eq!(failure.message.chars().count(), MAX_ERROR_CHARS);
    assert!(!failure.code.contains('\0') && !failure.message.contains('\0'));
}

proptest! {
    #[test]
    fn stored_text_is_always_accepted_as_input(text in any::<String>(), max in 0..50_usize) {
        prop_assert!(checked_text("f", &stored_text(&text, max), max).is_ok());
    }

    #[test]
    fn storing_twice_changes_nothing_more(text in any::<String>(), max in 0..50_usize) {
        let once = stored_text(&text, max);
        prop_assert_eq!(stored_text(&once, max), once);
    }

    #[test]
    fn clean_text_within_the_bound_is_kept_as_it_is(text in "[^\0]{0,50}") {
        prop_assert_eq!(stored_text(&text, 50), text);
    }
}
