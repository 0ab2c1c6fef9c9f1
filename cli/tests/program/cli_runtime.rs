//! The verb `runtime`: a runtime is installed from a folder, listed, found and removed. Its libraries are made up, and
//! nothing opens them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli_support::User;
use autoplace::llama_sys::{BUILD, TARGET};
use autoplace_runtime::Manifest;

/// A runtime of this build in a folder.
fn made(folder: &Path, name: &str, build: &str) -> PathBuf {
    let set = folder.join(name);
    fs::create_dir_all(&set).unwrap();
    fs::write(set.join("libllama.so.0"), "no library").unwrap();
    let mut manifest = Manifest::new(name, build, TARGET);
    manifest.libraries = vec!["libllama.so.0".to_owned()];
    manifest.compiler = "a compiler".to_owned();
    manifest.write(&set).unwrap();
    set
}

#[test]
fn a_runtime_is_installed_listed_found_and_removed() {
    let (user, folder) = (User::new(), tempfile::tempdir().unwrap());
    let runtimes = user.path("data/autoplace/runtimes");
    assert_eq!(user.says(&["runtime", "list"]), format!("no runtimes in {}\n", runtimes.display()));
    user.fails(&["runtime", "which"], 1, &["no runtime of ", "runtime install"]);

    let ours = made(folder.path(), "ours", BUILD);
    let installed = user.says(&["runtime", "install", ours.to_str().unwrap()]);
    assert_eq!(installed, format!("installed {}, 10 B\n", runtimes.join("ours").display()));
    let theirs = made(folder.path(), "theirs", "another build");
    let installed = user.says(&["runtime", "install", theirs.to_str().unwrap()]);
    assert!(installed.contains("note: programs of this version do not open it: "), "{installed}");

    let listed = user.says(&["runtime", "list"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!([lines[0], lines[1]], ["ours  CPU  10 B", "theirs  CPU  10 B"]);
    assert!(lines.len() == 3 && lines[2].contains("another build"), "{listed}");
    let found = user.says(&["runtime", "which"]);
    assert!(found.starts_with("ours  CPU  10 B\n") && found.contains(", by a compiler\n"), "{found}");

    // If a file of a runtime is damaged, the list says so.
    fs::write(runtimes.join("ours/libllama.so.0"), "a library!").unwrap();
    let listed = user.says(&["runtime", "list"]);
    assert!(listed.contains("libllama.so.0: its hash is"), "{listed}");

    let removed = user.says(&["runtime", "remove", "ours"]);
    assert_eq!(removed, format!("removed {}, 10 B\n", runtimes.join("ours").display()));
    user.fails(&["runtime", "remove", "ours"], 1, &["none is called `ours`"]);
    assert!(!runtimes.join("ours").exists() && runtimes.join("theirs").exists());
}

#[test]
fn what_is_no_runtime_is_not_installed() {
    let (user, folder) = (User::new(), tempfile::tempdir().unwrap());
    let text = folder.path().join("runtime.tar.gz");
    fs::write(&text, "no archive").unwrap();
    user.fails(&["runtime", "install", text.to_str().unwrap()], 1, &["runtime.tar.gz", "archive"]);
    user.fails(&["runtime", "install", folder.path().to_str().unwrap()], 1, &["runtime.json"]);
    user.fails(&["runtime", "install", "https://127.0.0.1/a.tar.gz"], 1, &["SHA-256"]);
    assert!(user.says(&["runtime", "list"]).starts_with("no runtimes in "));
}
