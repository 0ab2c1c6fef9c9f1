//! Where what was computed of prompts is kept: host memory (`--cache-ram`, which plans know too), and a folder.

use std::error::Error;
use std::path::PathBuf;

use autoplace::store::{PromptStore, StoreOptions};

use crate::ask::CacheRam;
use crate::sizes;

/// The prompt store of a model.
#[derive(Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// Also keeps what --cache-ram keeps in this folder, for this user alone, so that texts go on after a restart. The
    /// files hold the texts' tokens. SIZE limits them [default: 16GiB]
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = folder)]
    cache_dir: Option<(PathBuf, u64)>,
}

/// Bytes of a folder without a stated size.
const FOLDER_BYTES: u64 = 16 << 30;

impl StoreArgs {
    /// The store; `None` if none is asked for. `owner` is whose texts they are.
    pub(super) fn open(&self, ram: CacheRam, owner: Option<&str>) -> Result<Option<PromptStore>, Box<dyn Error>> {
        let mut options = match ram {
            CacheRam::Off if self.cache_dir.is_none() => return Ok(None),
            CacheRam::Off => StoreOptions::new(0),
            CacheRam::Auto => StoreOptions::automatic(),
            CacheRam::Bytes(bytes) => StoreOptions::new(bytes),
        };
        if let Some((folder, bytes)) = &self.cache_dir {
            options = options.folder(folder, *bytes);
        }
        if let Some(owner) = owner {
            options = options.owner(owner);
        }
        PromptStore::open(options).map(Some).map_err(|error| format!("--cache-dir: {error}").into())
    }
}

/// Parses a folder, and its size behind the last colon if a size is there.
fn folder(text: &str) -> Result<(PathBuf, u64), String> {
    let (folder, bytes) = match text.rsplit_once(':') {
        // `C:\prompts` has a colon too.
        Some((folder, size)) if size.starts_with(|c: char| c.is_ascii_digit()) => (folder, sizes::size(size)?),
        _ => (text, FOLDER_BYTES),
    };
    match folder {
        "" => Err(format!("`{text}` names no folder; it is DIR, or DIR:SIZE")),
        folder => Ok((folder.into(), bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::{FOLDER_BYTES, folder};

    #[test]
    fn a_folder_is_read_with_its_size_or_without() {
        let of = |text| folder(text).map(|(path, bytes)| (path.display().to_string(), bytes));
        assert_eq!(of("/a/b"), Ok(("/a/b".to_owned(), FOLDER_BYTES)));
        assert_eq!(of("/a/b:20GiB"), Ok(("/a/b".to_owned(), 20 << 30)));
        assert_eq!(of(r"C:\prompts"), Ok((r"C:\prompts".to_owned(), FOLDER_BYTES)));
        assert!(of("/a:20GX").is_err() && of(":20GiB").is_err());
    }
}
