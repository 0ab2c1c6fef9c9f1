//! Where a program looks for runtimes, and which of several it takes.

use std::fs;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use crate::error::{Error, io};
use crate::manifest::MANIFEST;
use crate::set::Set;

/// The environment's variable that names the folder of a runtime. Where it is set, no other is looked at.
pub const VARIABLE: &str = "AUTOPLACE_RUNTIME";

/// The folder beside a program in which it looks: what an application ships. Where it is there, no other is looked at.
pub const FOLDER: &str = "autoplace-runtime";

/// The set that a program opens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Whole, of this build, and usable on this machine.
    pub set: Set,
    /// Why none that would be better: one error for each.
    pub passed_over: Vec<Error>,
}

/// The user's folder of installed runtimes: `autoplace/runtimes` in the folder for data (`XDG_DATA_HOME`; `AppData`).
pub fn user_folder() -> Option<PathBuf> {
    let strategy = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(strategy.data_dir().join("autoplace").join("runtimes"))
}

/// Looks in the folder that `named` is (or, without it, [`VARIABLE`] names), else in [`FOLDER`] beside the program or
/// in `../lib` from there, else in the user's; takes the first that fits this program, is whole, and `usable` takes (or
/// says why not: it may open what the set needs). CUDA, ROCm and Metal come before Vulkan, that before the CPU alone.
///
/// # Errors
///
/// What is wrong with the set in the first of these folders that is there; [`Error::None`] with what is wrong with each
/// where there are several, or where there is none.
pub fn find(
    named: Option<&Path>,
    build: &str,
    target: &str,
    usable: impl Fn(&Set) -> Result<(), String>,
) -> Result<Choice, Error> {
    let named = named.map(Path::to_owned).or_else(|| {
        let folder = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
        folder.map(PathBuf::from)
    });
    let (folder, is_users) = match named.or_else(beside) {
        Some(folder) => (Some(folder), false),
        None => (user_folder(), true),
    };
    let mut passed_over = Vec::new();
    let sets = folder.iter().flat_map(|folder| installed(folder));
    let (mut sets, unread): (Vec<_>, Vec<_>) = sets.partition(Result::is_ok);
    passed_over.extend(unread.into_iter().filter_map(Result::err));
    let order = |set: &Result<Set, Error>| {
        set.as_ref().ok().map(|set| (std::cmp::Reverse(set.rank()), set.manifest.name.clone()))
    };
    sets.sort_by_key(order);
    for set in sets.into_iter().flatten() {
        let can = || usable(&set).map_err(|reason| Error::Unusable { folder: set.folder.clone(), reason });
        match set.fits(build, target).and_then(|()| set.check()).and_then(|()| can()) {
            Ok(()) => return Ok(Choice { set, passed_over }),
            Err(error) => passed_over.push(error),
        }
    }
    if passed_over.len() == 1 && !is_users {
        return Err(passed_over.remove(0));
    }
    let mut looked: Vec<String> = passed_over.iter().map(ToString::to_string).collect();
    if looked.is_empty() {
        let folder = folder
            .map_or_else(|| "the user's folder for data, which is not known".into(), |it| it.display().to_string());
        looked.push(format!("nothing in {folder}"));
    }
    looked.push(format!("`autoplace runtime install FILE|URL` brings one, {VARIABLE} names one elsewhere"));
    Err(Error::None { wanted: build.to_owned(), looked })
}

/// The runtimes in a folder: itself, or those right below it; what cannot be read of them among them.
pub fn installed(folder: &Path) -> Vec<Result<Set, Error>> {
    if folder.join(MANIFEST).exists() || !folder.is_dir() {
        return vec![Set::read(folder)];
    }
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // What is just being installed begins with a dot.
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut folders: Vec<PathBuf> = below.filter(|path| path.join(MANIFEST).exists() && !is_hidden(path)).collect();
    folders.sort();
    folders.iter().map(|folder| Set::read(folder)).collect()
}

/// Removes an installed runtime by its name.
///
/// # Errors
///
/// [`Error::NoManifest`] where the folder has none of that name, [`Error::Io`].
pub fn remove(folder: &Path, name: &str) -> Result<Set, Error> {
    let mut here = installed(folder).into_iter().flatten();
    let Some(set) = here.find(|set| set.manifest.name == name && set.folder != folder) else {
        let reason = format!("none is called `{name}`");
        return Err(Error::NoManifest { folder: folder.to_owned(), reason });
    };
    // Without its manifest first: what is half removed is no runtime.
    let manifest = set.folder.join(MANIFEST);
    fs::remove_file(&manifest).map_err(io(&manifest, "remove"))?;
    fs::remove_dir_all(&set.folder).map_err(io(&set.folder, "remove"))?;
    Ok(set)
}

/// What the application ships.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    [folder.join(FOLDER), folder.join("../lib").join(FOLDER)].into_iter().find(|folder| folder.is_dir())
}
