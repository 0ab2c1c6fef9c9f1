//! Folders: listing them, unpacking archives into them, and copying only changed files, so that builds of the copy stay
//! up to date.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::{Workspace, output, run};

/// Makes `to` contain exactly the files of `from` whose relative paths are `wanted`. Folders that are not wanted are
/// not entered. Links are followed, so their targets are copied.
pub(crate) fn mirror(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    let mut keep = BTreeSet::new();
    copy(from, to, Path::new(""), wanted, &mut keep)?;
    prune(to, Path::new(""), &keep)
}

/// Makes an empty folder. An existing folder is removed first.
pub(crate) fn afresh(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Unpacks a gzipped tar archive into an existing folder.
pub(crate) fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder))
}

/// Packs a folder into `FOLDER.tar.gz`, in the same parent folder. The same folder at the same commit gives the same
/// archive.
pub(crate) fn pack(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let name = folder.file_name().context("the folder has a name")?;
    let archive = folder.with_file_name(format!("{}.tar.gz", name.to_string_lossy()));
    let mut time = Command::new("git");
    time.current_dir(&workspace.root);
    let time = output(time.args(["log", "-1", "--format=@%ct"]))?;
    run(Command::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--mode=u=rwX,go=rX", "--format=gnu"])
        .arg(format!("--mtime={}", time.trim()))
        .args(["--use-compress-program", "gzip -n", "--create"])
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(folder.parent().context("the folder lies in another")?)
        .arg(name))?;
    Ok(archive)
}

/// All files below a folder, as sorted relative paths.
pub(crate) fn files(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    walk(dir, Path::new(""), &mut |path| {
        found.insert(path.to_owned());
        Ok(())
    })?;
    Ok(found)
}

fn copy(
    from: &Path,
    to: &Path,
    below: &Path,
    wanted: &dyn Fn(&Path) -> bool,
    keep: &mut BTreeSet<PathBuf>,
) -> Result<()> {
    for name in names(&from.join(below))? {
        let path = below.join(name);
        if !wanted(&path) {
            continue;
        }
        let source = from.join(&path);
        if source.is_dir() {
            copy(from, to, &path, wanted, keep)?;
        } else {
            let content = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            write(&to.join(&path), &content)?;
            keep.insert(path);
        }
    }
    Ok(())
}

/// Writes a file and its parent folders, unless the content is the same.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let parent = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn prune(dir: &Path, below: &Path, keep: &BTreeSet<PathBuf>) -> Result<()> {
    walk(dir, below, &mut |path| {
        if !keep.contains(path) {
            fs::remove_file(dir.join(path)).with_context(|| format!("cannot remove {}", dir.join(path).display()))?;
        }
        Ok(())
    })
}

fn walk(dir: &Path, below: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    for name in names(&dir.join(below))? {
        let path = below.join(name);
        if dir.join(&path).is_dir() {
            walk(dir, &path, visit)?;
        } else {
            visit(&path)?;
        }
    }
    Ok(())
}

fn names(dir: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder for this test.
    fn folder(name: &str) -> PathBuf {
        afresh(std::env::temp_dir().join(format!("autoplace-xtask-{name}-{}", std::process::id()))).unwrap()
    }

    #[test]
    fn a_mirror_copies_the_wanted_files_and_removes_the_rest() {
        let dir = folder("mirror");
        let (from, to) = (dir.join("from"), dir.join("to"));
        for (path, text) in [("a/kept", "1"), ("a/unwanted", "2"), ("b", "3")] {
            write(&from.join(path), text.as_bytes()).unwrap();
        }
        write(&to.join("a/stale"), b"4").unwrap();
        mirror(&from, &to, &|path| path != Path::new("a/unwanted")).unwrap();
        assert_eq!(files(&to).unwrap(), BTreeSet::from(["a/kept".into(), "b".into()]));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_unchanged_file_keeps_its_time() {
        let dir = folder("times");
        let (from, to) = (dir.join("from"), dir.join("to"));
        write(&from.join("same"), b"1").unwrap();
        mirror(&from, &to, &|_| true).unwrap();
        let before = fs::metadata(to.join("same")).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        mirror(&from, &to, &|_| true).unwrap();
        assert_eq!(fs::metadata(to.join("same")).unwrap().modified().unwrap(), before);
        fs::remove_dir_all(dir).unwrap();
    }
}
