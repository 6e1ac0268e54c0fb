//! A command line, split into words and never given to a shell.

use std::ffi::OsStr;
use std::path::Path;
use std::{env, fs, io};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Where programs are looked for if the environment does not say, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

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

    /// Says why the program could not be run now: a path, or a bare name that is looked for in `PATH`.
    pub fn check(&self) -> Result<(), String> {
        self.check_in(&env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))
    }

    fn check_in(&self, path: &OsStr) -> Result<(), String> {
        let program = &self.program;
        if program.contains('/') {
            return runnable(Path::new(program)).map_err(|error| format!("cannot run {program}: {error}"));
        }
        let found = env::split_paths(path).any(|folder| runnable(&folder.join(program)).is_ok());
        if found { Ok(()) } else { Err(format!("cannot run {program}: PATH has no such executable")) }
    }
}

fn runnable(file: &Path) -> io::Result<()> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::Command;

    #[test]
    fn a_program_that_cannot_be_run_is_told_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("runs", 0o755), ("text", 0o644)] {
            fs::write(dir.path().join(name), "").unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let folder = dir.path().display();
        let path = format!("/nonexistent:{folder}");
        let check = |line: &str| Command::parse(line).unwrap().check_in(path.as_ref());
        for line in ["runs -x", &format!("{folder}/runs")] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
        for program in ["text", "none", &format!("{folder}/text"), &format!("{folder}/none"), &format!("{folder}/")] {
            let error = check(&format!("{program} runs")).unwrap_err();
            assert!(error.starts_with(&format!("cannot run {program}: ")), "{error}");
        }
    }

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
