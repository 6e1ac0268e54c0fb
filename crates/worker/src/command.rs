//! A command line, split into words and never given to a shell.

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
}

impl Command {
    /// Splits a line into words: blanks separate, quotes and backslashes work as in a shell, nothing else is special.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words = shlex::split(line).ok_or("the command has an open quote or ends in a backslash")?;
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.is_empty()).ok_or("names no command")?;
        Ok(Self { program, arguments: words.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn words_are_split_as_in_a_shell_and_nothing_is_expanded() {
        let command = Command::parse(r#"sh -c 'echo "$HOME" | cat' "a b" c\ d $X *"#).unwrap();
        assert_eq!(command.program, "sh");
        assert_eq!(command.arguments, ["-c", r#"echo "$HOME" | cat"#, "a b", "c d", "$X", "*"]);
    }

    #[test]
    fn a_line_that_names_no_command_is_refused() {
        for line in ["", "  ", "''", "'a", "a\\"] {
            assert!(Command::parse(line).is_err(), "{line:?}");
        }
    }
}
