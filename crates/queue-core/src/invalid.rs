//! What is wrong with an input, and with which field.

/// A value that is refused, with the field it came in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field as the protocol names it, such as `jobs[3].queue`.
    pub field: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl Invalid {
    /// Refuses the value of a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// Names the message that the field is in: `queue` within `job` becomes `job.queue`.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), ..self }
    }
}
