//! The verb `cache`: lists or removes the prompts in a folder of `--cache-dir`.

use std::error::Error;
use std::path::PathBuf;

use autoplace::machine::{Bytes, folder};
use autoplace::store::{PromptStore, StoreOptions};
use clap::Subcommand;

/// Operations on a folder of stored prompts.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheVerb {
    /// Lists the models with stored texts
    List {
        /// The folder that --cache-dir names
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Shows how much is stored
    Stat {
        /// The folder that --cache-dir names
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Removes everything that is stored
    Clear {
        /// The folder that --cache-dir names
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

pub(crate) fn run(verb: &CacheVerb) -> Result<String, Box<dyn Error>> {
    let (CacheVerb::List { folder } | CacheVerb::Stat { folder } | CacheVerb::Clear { folder }) = verb;
    // The folder may be on the network, and not answer.
    let named = folder.clone();
    if !folder::ask(folder, move || Ok(named.is_dir()))? {
        return Err(format!("{}: this folder does not exist", folder.display()).into());
    }
    // The store is opened without a limit. Otherwise, opening it could remove texts.
    let store = PromptStore::open(StoreOptions::new(u64::MAX).folder(folder, u64::MAX))?;
    store.wait_for_folder()?;
    let usage = store.usage();
    let size = Bytes(usage.folder_bytes);
    match verb {
        CacheVerb::List { .. } => {
            let mut lines = vec![format!("{:>12}  {:>10}  model", "bytes", "tokens")];
            lines.extend(store.models().iter().map(|model| {
                let name = if model.name.is_empty() { "without a name" } else { &model.name };
                format!("{:>12}  {:>10}  {name}", Bytes(model.folder_bytes).to_string(), model.tokens)
            }));
            Ok(if lines.len() == 1 { format!("nothing is stored in {}", folder.display()) } else { lines.join("\n") })
        }
        CacheVerb::Stat { .. } => {
            let models = store.models().len();
            let tokens = usage.tokens;
            Ok(format!("{size} in {} pieces: {tokens} tokens from {models} models", usage.pieces))
        }
        CacheVerb::Clear { .. } if usage.folder_limit == 0 => {
            Err(format!("{}: another process writes into this folder; end that process first", folder.display()).into())
        }
        CacheVerb::Clear { .. } => {
            store.clear()?;
            Ok(format!("removed {size} from {}", folder.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{CacheVerb, folder, run};

    #[test]
    fn a_folder_that_does_not_answer_is_an_error_that_names_it() {
        let far = tempfile::tempdir().unwrap();
        let folder = far.path().to_owned();
        let (release, held) = mpsc::channel::<()>();
        folder::ask(&folder, move || Ok(held.recv().is_ok())).unwrap_err();
        let expected = format!("{}: the folder has not answered within 10 s", folder.display());
        let named = || folder.clone();
        for verb in [
            CacheVerb::List { folder: named() },
            CacheVerb::Stat { folder: named() },
            CacheVerb::Clear { folder: named() },
        ] {
            assert_eq!(run(&verb).unwrap_err().to_string(), expected, "{verb:?}");
        }
        drop(release);
    }
}
