//! Texts from outside: checked where they are input, made storable where they are reports.

use crate::Invalid;

/// Refuses a text that is too long or holds a NUL character, which PostgreSQL cannot store.
pub fn checked_text(field: &str, text: &str, max_chars: usize) -> Result<(), Invalid> {
    if text.contains('\0') {
        return Err(Invalid::new(field, "has a NUL character"));
    }
    // Bytes bound characters from above, so most texts need not be counted.
    if text.len() > max_chars && text.chars().count() > max_chars {
        return Err(Invalid::new(field, format!("has more than {max_chars} characters")));
    }
    Ok(())
}

/// Makes a report storable whatever it holds: NUL becomes U+FFFD, and it is cut on a character boundary.
///
/// A failure must never be lost because of how it was worded.
pub fn stored_text(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
