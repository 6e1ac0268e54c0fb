//! The independent check: every digest computed again, here.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::{digest::FileDigest, outcome::Outcome};

/// Files whose job has not the effect that it should, each with what is wrong.
pub(crate) async fn compare(files: Vec<PathBuf>, outcomes: Vec<Outcome>) -> anyhow::Result<Vec<String>> {
    let compare = move || files.iter().zip(&outcomes).filter_map(|(file, outcome)| wrong(file, outcome)).collect();
    tokio::task::spawn_blocking(compare).await.context("wait for the comparison")
}

fn wrong(file: &Path, outcome: &Outcome) -> Option<String> {
    let complain = |what: String| Some(format!("{}: {what}", file.display()));
    let Some(effect) = &outcome.effect else {
        return complain(format!("no effect; {}", outcome.trouble));
    };
    if !outcome.succeeded {
        return complain("an effect, but the job has not succeeded".to_owned());
    }
    match (FileDigest::of_effect(effect), FileDigest::of(file)) {
        (Ok(committed), Ok(read)) if committed == read => None,
        (Ok(committed), Ok(read)) => complain(format!("the effect is {committed:?}, the file {read:?}")),
        (Err(error), _) => complain(format!("{error:#}")),
        (_, Err(error)) => complain(format!("cannot be read again: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wrong_missing_and_unreadable_effects_are_named_and_right_ones_are_not() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let file = |name: &str| -> anyhow::Result<PathBuf> {
            let path = folder.path().join(name);
            std::fs::write(&path, "content\n")?;
            Ok(path)
        };
        let digest = FileDigest::of(&file("right")?)?;
        let effect = format!(r#"{{"sha256":"{}","bytes":8,"lines":1}}"#, digest.sha256);
        let outcome = |effect: Option<&str>| Outcome {
            succeeded: true,
            effect: effect.map(|text| text.as_bytes().to_vec()),
            ..Outcome::default()
        };
        let other = effect.replace("\"lines\":1", "\"lines\":2");
        let outcomes = [Some(effect.as_str()), Some(&other), None, Some("{"), Some(&effect)].map(outcome).to_vec();
        let files = vec![file("right")?, file("other")?, file("none")?, file("broken")?, folder.path().join("gone")];
        let wrong = compare(files, outcomes).await?;
        let names = ["other", "none", "broken", "gone"];
        assert_eq!(wrong.len(), names.len(), "{wrong:?}");
        for (line, name) in wrong.iter().zip(names) {
            assert!(line.contains(name), "{line}");
        }
        Ok(())
    }
}
