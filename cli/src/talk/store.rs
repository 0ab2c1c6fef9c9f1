//! The stores for computed prompts: in host memory (`--cache-ram`, which plans also read), and in a folder.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;

use autoplace::store::{PromptStore, StoreOptions};

use crate::ask::CacheRam;
use crate::sizes;

/// The arguments of a model's prompt store.
#[derive(Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// Also keeps the prompts of --cache-ram in this folder, for this user alone, so that texts continue after a
    /// restart. The files hold the texts' tokens. SIZE limits them [default: 16GiB]. Each of several models has a
    /// folder there
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = folder)]
    cache_dir: Option<(PathBuf, u64)>,
}

/// Maximum bytes in a folder if no size is given.
const FOLDER_BYTES: u64 = 16 << 30;

impl StoreArgs {
    /// Opens the store; `None` if there is none. `keys` are the server's keys, which identify the owner of the texts.
    pub(super) fn open(&self, ram: CacheRam, keys: &[String]) -> Result<Option<PromptStore>, Box<dyn Error>> {
        let mut options = match ram {
            CacheRam::Off if self.cache_dir.is_none() => return Ok(None),
            CacheRam::Off => StoreOptions::new(0),
            CacheRam::Auto => StoreOptions::automatic(),
            CacheRam::Bytes(bytes) => StoreOptions::new(bytes),
        };
        if let Some((folder, bytes)) = &self.cache_dir {
            options = options.folder(folder, *bytes);
        }
        if let Some(owner) = owner_with(keys) {
            options = options.owner(&owner);
        }
        PromptStore::open(options).map(Some).map_err(|error| format!("--cache-dir: {error}").into())
    }

    /// The stores for several models.
    pub(super) fn of_pool(&self, ram: Option<CacheRam>, keys: &[String]) -> Result<PoolStores, &'static str> {
        let ram = match ram {
            None | Some(CacheRam::Off) => 0,
            Some(CacheRam::Bytes(bytes)) => bytes,
            // In a pool, if one model leaves host memory free, that memory is for the other models.
            Some(CacheRam::Auto) => {
                return Err("--cache-ram auto is for one model: each of several models needs a size, such as 2GiB");
            }
        };
        Ok(PoolStores { ram, folder: self.cache_dir.clone(), owner: owner_with(keys) })
    }
}

/// The name of the owner of a server's texts: its key, or its set of keys. Without keys, the texts have no owner.
fn owner_with(keys: &[String]) -> Option<String> {
    let keys: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
    // No key contains a line break, so no two sets have the same name.
    (!keys.is_empty()).then(|| keys.into_iter().collect::<Vec<_>>().join("\n"))
}

/// The settings with which the models of a pool store their prompts. Each model has its own store.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolStores {
    /// Maximum bytes of host memory for a model whose specification sets none.
    ram: u64,
    folder: Option<(PathBuf, u64)>,
    owner: Option<String>,
}

impl PoolStores {
    /// The options of the store for the model with this name; `None` if it has no store. `stated` are the options in
    /// the model's specification.
    pub(super) fn of(&self, name: &str, stated: Option<&StoreOptions>) -> Option<StoreOptions> {
        let ram = stated.and_then(|stated| stated.memory_bytes).unwrap_or(self.ram);
        let mut options = StoreOptions::new(ram);
        match &self.folder {
            Some((folder, bytes)) => options = options.folder(folder.join(file_name(name)), *bytes),
            None if ram == 0 => return None,
            None => {}
        }
        Some(match &self.owner {
            Some(owner) => options.owner(owner),
            None => options,
        })
    }
}

/// The name of a model's folder. In the model's name, all bytes except for letters, digits, `-`, `_` and inner dots are
/// percent-encoded.
fn file_name(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(byte.into()),
            b'.' if !encoded.is_empty() => encoded.push('.'),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// Parses a folder, and the size after the last colon, if there is one.
fn folder(text: &str) -> Result<(PathBuf, u64), String> {
    let (folder, bytes) = match text.rsplit_once(':') {
        // A path such as `C:\prompts` has a colon too.
        Some((folder, size)) if size.starts_with(|c: char| c.is_ascii_digit()) => (folder, sizes::size(size)?),
        _ => (text, FOLDER_BYTES),
    };
    match folder {
        "" => Err(format!("`{text}` names no folder: write DIR or DIR:SIZE")),
        folder => Ok((folder.into(), bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::{FOLDER_BYTES, PoolStores, file_name, folder, owner_with};
    use autoplace::store::StoreOptions;

    #[test]
    fn each_model_of_a_pool_has_its_own_store_and_its_stated_memory_comes_first() {
        let stores = |ram, folder| PoolStores { ram, folder, owner: None };
        let stated = |bytes| Some(StoreOptions::new(bytes));
        assert_eq!(stores(0, None).of("a", None), None);
        assert_eq!(stores(0, None).of("a", stated(5).as_ref()), stated(5));
        assert_eq!(stores(7, None).of("a", None), stated(7));
        assert_eq!(stores(7, None).of("a", stated(0).as_ref()), None);
        let in_folder = stores(7, Some(("dir".into(), 9))).of("org/a:b", None).unwrap();
        assert_eq!(in_folder, StoreOptions::new(7).folder("dir/org%2Fa%3Ab", 9));
        assert_eq!(["..", ".a.b", "a%"].map(file_name), ["%2E.", "%2Ea.b", "a%25"]);
    }

    #[test]
    fn the_owner_is_the_key_or_the_set_of_keys() {
        let owner = |keys: &[&str]| owner_with(&keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>());
        assert_eq!((owner(&[]), owner(&["a"])), (None, Some("a".to_owned())));
        assert_eq!(owner(&["b", "a", "b"]), owner(&["a", "b"]));
        assert!(![owner(&["a"]), owner(&["b"]), owner(&["ab"])].contains(&owner(&["a", "b"])));
    }

    #[test]
    fn a_folder_is_read_with_its_size_or_without() {
        let of = |text| folder(text).map(|(path, bytes)| (path.display().to_string(), bytes));
        assert_eq!(of("/a/b"), Ok(("/a/b".to_owned(), FOLDER_BYTES)));
        assert_eq!(of("/a/b:20GiB"), Ok(("/a/b".to_owned(), 20 << 30)));
        assert_eq!(of(r"C:\prompts"), Ok((r"C:\prompts".to_owned(), FOLDER_BYTES)));
        assert!(of("/a:20GX").is_err() && of(":20GiB").is_err());
    }
}
