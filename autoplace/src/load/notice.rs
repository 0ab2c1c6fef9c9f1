//! Notices from one process to the other processes of the same user: small files in the folder of the leases.
//!
//! A notice has two files: one contains the notice, and the other is kept locked by the process that wrote it. The
//! operating system unlocks this file when the process ends, however it ends. A notice whose lock is free is therefore
//! old, and the next reader removes it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum bytes of a content that is read, and maximum number of notices.
const MAX_BYTES: u64 = 64 << 10;
const MAX_NOTICES: usize = 1024;

/// A notice, which is withdrawn when it is dropped.
#[derive(Debug)]
pub(super) struct Notice {
    lock: File,
    lock_path: PathBuf,
    path: PathBuf,
}

impl Notice {
    pub(super) fn write(folder: &Path, content: &impl Serialize) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);

        fs::create_dir_all(folder)?;
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let at = |ending: &str| folder.join(format!("{name}.{ending}"));
        let (lock_path, path) = (at("lock"), at("json"));
        let lock = File::options().write(true).create(true).truncate(true).open(&lock_path)?;
        lock.try_lock().map_err(io::Error::other)?;
        let notice = Self { lock, lock_path, path };
        notice.rewrite(content)?;
        Ok(notice)
    }

    /// Replaces the content. Other processes read either the whole old content or the whole new one.
    pub(super) fn rewrite(&self, content: &impl Serialize) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let content = serde_json::to_vec(content).map_err(io::Error::other)?;
        let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Unlocks explicitly, because a child process that is being started may have a copy of the handle.
        let _ = self.lock.unlock();
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// The notices in a folder. Notices that cannot be read are left out.
pub(super) fn read<T: DeserializeOwned>(folder: &Path) -> Vec<T> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json" || ending == "new"));
    files.take(MAX_NOTICES).filter_map(|path| living(&path)).collect()
}

/// The content of this file. `None` while the process that owns the notice still writes the file. If that process has
/// ended, this function removes the file and returns `None`.
fn living<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let lock_path = path.with_extension("lock");
    let is_held = File::options().write(true).open(&lock_path).is_ok_and(|lock| lock.try_lock().is_err());
    if !is_held {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(&lock_path);
        return None;
    }
    if path.extension().is_some_and(|ending| ending == "new") {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_until_it_is_withdrawn_or_its_process_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().join("notices");
        assert_eq!(read::<String>(folder), Vec::<String>::new());
        let notice = Notice::write(folder, &"here").unwrap();
        assert_eq!(read::<String>(folder), ["here"]);
        notice.rewrite(&"there").unwrap();
        assert_eq!(read::<String>(folder), ["there"]);
        notice.rewrite(&"here").unwrap();
        // Files of a killed process: their lock is free, or missing.
        for (name, has_lock) in [("1-0", true), ("2-0", false)] {
            let left = folder.join(format!("{name}.json"));
            fs::write(&left, "\"old\"").unwrap();
            if has_lock {
                fs::write(left.with_extension("lock"), "").unwrap();
            }
            assert_eq!(read::<String>(folder), ["here"]);
            assert!(!left.exists() && !left.with_extension("lock").exists());
        }
        let unfinished = folder.join("3-0.new");
        fs::write(&unfinished, "\"ol").unwrap();
        assert_eq!(read::<String>(folder), ["here"]);
        assert!(!unfinished.exists());
        // If the content has another type than the reader expects, it is left out, and the file stays.
        assert_eq!(read::<u32>(folder), Vec::<u32>::new());
        assert_eq!(read::<String>(folder), ["here"]);
        drop(notice);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn a_notice_that_cannot_be_written_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        // A folder exists at each path that a notice could have.
        for number in 0..1000 {
            let name = format!("{}-{number}.json", std::process::id());
            fs::create_dir_all(folder.path().join(name).join("taken")).unwrap();
        }
        assert!(Notice::write(folder.path(), &"here").is_err());
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(left.filter(|path| !path.is_dir()).count(), 0);
    }
}
