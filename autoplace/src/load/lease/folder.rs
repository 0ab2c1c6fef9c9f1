//! The folder that all processes of a user find, and that nobody else writes in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "autoplace";

/// The folder, made if there is none.
pub(super) fn make(folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

/// The folder in the user's runtime directory, made if there is none.
///
/// Looked for in a fixed order, so that a service without the session's environment finds the same one: what the
/// session says (XDG Base Directory Specification), where systemd puts it, and the folder for temporary files, which
/// may be everybody's.
#[cfg(unix)]
pub(super) fn user() -> io::Result<PathBuf> {
    let id = rustix::process::getuid().as_raw();
    let session = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute());
    let mut failed = None;
    for candidate in [
        session.map(|folder| folder.join(NAME)),
        cfg!(target_os = "linux").then(|| PathBuf::from(format!("/run/user/{id}/{NAME}"))),
        Some(std::env::temp_dir().join(format!("{NAME}-{id}"))),
    ]
    .into_iter()
    .flatten()
    {
        match private(&candidate, id) {
            Ok(()) => return Ok(candidate),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// The folder in the one for temporary files, which is the user's own (`GetTempPath2`).
#[cfg(not(unix))]
pub(super) fn user() -> io::Result<PathBuf> {
    make(&std::env::temp_dir().join(NAME))
}

/// Makes the folder for this user alone. One that somebody else has made or can write in is refused: whoever writes
/// there decides how much of a GPU we use.
#[cfg(unix)]
fn private(folder: &Path, user: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not what a link points to.
    let there = fs::symlink_metadata(folder)?;
    if there.is_dir() && there.uid() == user && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} is not this user's alone", folder.display()),
    ))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_users_folder_is_for_the_user_alone() {
        let base = tempfile::tempdir().unwrap();
        let me = rustix::process::getuid().as_raw();
        let folder = base.path().join("mine");
        private(&folder, me).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        private(&folder, me).unwrap();

        assert!(private(&folder, me + 1).is_err(), "somebody else's");
        let link = base.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(private(&link, me).is_err(), "a link");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        let error = private(&folder, me).unwrap_err().to_string();
        assert!(error.contains("mine"), "{error}");
    }
}
