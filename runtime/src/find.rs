//! Finds the runtimes for a program and chooses one of them.

use std::fs;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use crate::error::{Error, io};
use crate::manifest::MANIFEST;
use crate::set::Set;

/// The environment variable that names a runtime's folder. If set, no other folder is searched.
pub const VARIABLE: &str = "AUTOPLACE_RUNTIME";

/// The name of the folder with a runtime that an application ships together with its program. If the folder exists,
/// only [`VARIABLE`] takes precedence over it.
pub const FOLDER: &str = "autoplace-runtime";

/// The set to open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// A set that is complete, belongs to this build, and is usable on this machine.
    pub set: Set,
    /// The errors of better sets that were skipped.
    pub passed_over: Vec<Error>,
}

/// The user's folder of installed runtimes: `autoplace/runtimes` in the data folder (`XDG_DATA_HOME`; `AppData`).
pub fn user_folder() -> Option<PathBuf> {
    let strategy = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(strategy.data_dir().join("autoplace").join("runtimes"))
}

/// Searches for the best set that fits this program, is complete, and passes `usable`. The search uses only one folder:
/// `named` (by default the value of [`VARIABLE`]), else [`FOLDER`] in the program's folder or in `../lib` relative to
/// it, else the user's folder. `usable` may open the set's requirements, and returns the reason if it refuses the set.
/// CUDA, ROCm and Metal are better than Vulkan, and Vulkan is better than the CPU alone.
///
/// # Errors
///
/// If a folder other than the user's holds a single set, the error of this set. Otherwise [`Error::None`] with the
/// errors of all sets.
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
            .map_or_else(|| "the user's folder for data, which is not known".into(), |path| path.display().to_string());
        looked.push(format!("nothing in {folder}"));
    }
    looked
        .push(format!("`autoplace runtime install FILE|URL` installs one, and {VARIABLE} names one in another folder"));
    Err(Error::None { wanted: build.to_owned(), looked })
}

/// The runtimes in a folder: the folder itself, or its direct subfolders. Unreadable runtimes are included as errors.
pub fn installed(folder: &Path) -> Vec<Result<Set, Error>> {
    if folder.join(MANIFEST).exists() || !folder.is_dir() {
        return vec![Set::read(folder)];
    }
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // While an installation runs, the name of its folder begins with a dot.
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut folders: Vec<PathBuf> = below.filter(|path| path.join(MANIFEST).exists() && !is_hidden(path)).collect();
    folders.sort();
    folders.iter().map(|folder| Set::read(folder)).collect()
}

/// Removes an installed runtime by name.
///
/// # Errors
///
/// [`Error::NoManifest`] if the folder has no runtime of that name; [`Error::Io`].
pub fn remove(folder: &Path, name: &str) -> Result<Set, Error> {
    let mut here = installed(folder).into_iter().flatten();
    let Some(set) = here.find(|set| set.manifest.name == name && set.folder != folder) else {
        let reason = format!("none is called `{name}`");
        return Err(Error::NoManifest { folder: folder.to_owned(), reason });
    };
    // The manifest is removed first, so that a folder that is only partly removed does not count as a runtime.
    let manifest = set.folder.join(MANIFEST);
    fs::remove_file(&manifest).map_err(io(&manifest, "remove"))?;
    fs::remove_dir_all(&set.folder).map_err(io(&set.folder, "remove"))?;
    Ok(set)
}

/// The runtime that the application ships.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    [folder.join(FOLDER), folder.join("../lib").join(FOLDER)].into_iter().find(|folder| folder.is_dir())
}
