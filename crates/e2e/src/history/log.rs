//! The files of a history.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;

use super::{Entry, Event, History};
use crate::clock;

/// What the names of its files end with.
const EXTENSION: &str = "history";

/// Writes one process's part of the history. Each line is handed to the kernel before what it tells of happens, so that it is
/// there whatever becomes of the process.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    by: String,
    file: Arc<Mutex<File>>,
}

impl Log {
    /// A file of its own in the folder. Another process with the same name appends to it.
    pub(crate) fn open(folder: &Path, by: &str) -> anyhow::Result<Self> {
        let path = folder.join(by).with_extension(EXTENSION);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        Ok(Self { by: by.to_owned(), file: Arc::new(Mutex::new(file)) })
    }

    /// Writes one line. A history that cannot be written judges nothing, so this panics if it cannot.
    pub(crate) fn write(&self, event: Event) {
        let entry = Entry { at: clock::nanos(), by: self.by.clone(), event };
        let mut line = serde_json::to_vec(&entry).expect("an entry can be written as JSON");
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("the history is written");
    }
}

/// Reads all files of a folder. A last line that was cut off by a kill is left out.
pub(crate) fn load(folder: &Path) -> anyhow::Result<History> {
    let mut entries = Vec::new();
    let files = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = files.map(|file| file.map(|file| file.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    paths.sort();
    for path in paths {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            entries.push(serde_json::from_str(line).with_context(|| format!("{}: {line}", path.display()))?);
        }
    }
    Ok(History::of(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_files_come_back_in_order_without_one_that_was_cut() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (one, two) = (Log::open(folder.path(), "one")?, Log::open(folder.path(), "two")?);
        let event = |what: &str| Event::Fault { what: what.to_owned() };
        one.write(event("a"));
        two.write(event("b"));
        one.write(event("c"));
        let path = folder.path().join("two").with_extension(EXTENSION);
        File::options().append(true).open(path)?.write_all(b"{\"at\":1,\"by\"")?;
        let history = load(folder.path())?;
        let seen: Vec<&Event> = history.entries.iter().map(|entry| &entry.event).collect();
        assert_eq!(seen, [&event("a"), &event("b"), &event("c")]);
        Ok(())
    }
}
