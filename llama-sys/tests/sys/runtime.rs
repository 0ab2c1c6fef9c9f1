//! A program that was built with `prebuilt-runtime` opens a set of libraries only if the set is complete and belongs to
//! the program's build. The other tests in this program call functions of such a set, which `cargo xtask runtime
//! --here` makes.

use std::fs;
use std::path::{Path, PathBuf};

use llama_sys::runtime::{Error, MANIFEST, Manifest, Set, VARIABLE, open_from, opened, shortcomings};
use llama_sys::{BUILD, Backend, Error as Native, build_info, has_media};
use tempfile::TempDir;

/// The set with which these tests run.
fn whole() -> PathBuf {
    PathBuf::from(std::env::var_os(VARIABLE).expect("`cargo xtask test runtime` says which"))
}

/// A copy of the set.
fn copy(folder: &TempDir, name: &str) -> Set {
    let set = folder.path().join(name);
    fs::create_dir(&set).unwrap();
    for entry in fs::read_dir(whole()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, set.join(path.file_name().unwrap())).unwrap();
    }
    Set::read(&set).unwrap()
}

/// The last library, which contains the shim.
fn shim(set: &Set) -> PathBuf {
    set.folder.join(set.manifest.libraries.last().unwrap())
}

/// Replaces the first occurrence of these bytes in a file.
fn replace(file: &Path, old: &[u8], new: &[u8]) {
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.windows(old.len()).position(|part| part == old).unwrap();
    bytes[at..at + new.len()].copy_from_slice(new);
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_or_foreign_runtime_is_refused_unopened_and_a_whole_one_opens_later() {
    own_process!();
    let folder = TempDir::new().unwrap();
    type Damage<'a> = (&'a str, &'a dyn Fn(&Set), &'a dyn Fn(&Error) -> bool);
    let damages: [Damage<'_>; 6] = [
        ("a byte", &|set| replace(&shim(set), b"ggml_backend_dev_count", b"G"), &|error| {
            matches!(error, Error::Damaged { .. })
        }),
        (
            "half copied",
            &|set| fs::File::options().write(true).open(shim(set)).unwrap().set_len(4096).unwrap(),
            &|error| matches!(error, Error::Damaged { .. }),
        ),
        ("a library less", &|set| fs::remove_file(shim(set)).unwrap(), &|error| matches!(error, Error::Damaged { .. })),
        ("another commit", &|set| replace(&set.folder.join(MANIFEST), b"llama.cpp ", b"llama.cpp z"), &|error| {
            match error {
                Error::OtherBuild { theirs, ours, .. } => theirs.contains("llama.cpp z") && ours == BUILD,
                _ => false,
            }
        }),
        // The libraries are those in the manifest's list, but they belong to another build than the manifest states.
        (
            "libraries of another commit",
            &|set| {
                replace(&shim(set), BUILD.as_bytes(), BUILD.replace("llama.cpp ", "llama.cpp z").as_bytes());
                set.manifest.clone().write(&set.folder).unwrap();
            },
            &|error| matches!(error, Error::Unusable { reason, .. } if reason.contains(BUILD)),
        ),
        (
            "no library",
            &|set| {
                fs::write(shim(set), "no ELF file").unwrap();
                set.manifest.clone().write(&set.folder).unwrap();
            },
            &|error| matches!(error, Error::Unusable { .. }),
        ),
    ];
    for (case, damage, is_expected) in damages {
        let set = copy(&folder, case);
        damage(&set);
        let error = open_from(&set.folder).unwrap_err();
        assert!(is_expected(&error), "{case}: {error}");
        assert_matches!(Backend::init(), Err(Native::Runtime(again)) if *again == error);
        assert!(!has_media());
        assert!(opened().is_none());
        assert!(build_info().backends.is_empty());
        assert!(!is_mapped(&set.folder), "{case}");
    }
    let set = copy(&folder, "whole");
    assert_eq!(open_from(&set.folder).unwrap().set, set);
    // The two lists have different orders.
    let (mut names, mut built) = (Backend::init().unwrap().names(), build_info().backends.clone());
    names.sort();
    built.sort();
    assert_eq!(names, built);
    assert!(shortcomings().is_empty());
    // A runtime that is open stays open.
    assert_eq!(open_from(&whole()).unwrap().set, set);
    assert!(is_mapped(&set.folder));
}

#[test]
fn the_first_question_opens_a_runtime() {
    own_process!();
    assert!(opened().is_none());
    assert!(has_media());
    assert_eq!(opened().unwrap().set, Set::read(&whole()).unwrap());
}

/// Whether a library of this folder is mapped into this process.
fn is_mapped(folder: &Path) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(folder.to_str().unwrap())
}

#[test]
fn no_runtime_is_opened_beside_another_ggml() {
    own_process!();
    let folder = TempDir::new().unwrap();
    let other = copy(&folder, "other");
    // SAFETY: its initialisers run, and none of its functions is called.
    let _other = unsafe { libloading::Library::new(shim(&other)) }.unwrap();
    let error = open_from(&copy(&folder, "ours").folder).unwrap_err();
    assert!(matches!(&error, Error::Unusable { reason, .. } if reason.contains("another ggml")), "{error}");
}

#[test]
fn a_set_names_missing_libraries_and_their_source() {
    own_process!();
    let folder = TempDir::new().unwrap();
    let needs = |library: &str, instruction: &str, cuda: Option<u32>| {
        let set = copy(&folder, &format!("{}{instruction}{cuda:?}", library.replace('/', "-")));
        let mut manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(set.folder.join(MANIFEST)).unwrap()).unwrap();
        let source = "NVIDIA's driver, 580 or newer";
        manifest["requires"] =
            serde_json::json!([{ "backend": "CUDA", "library": library, "source": source, "cuda": cuda }]);
        manifest["instructions"].as_array_mut().unwrap().push(instruction.into());
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        manifest.write(&set.folder).unwrap();
        open_from(&set.folder).map_err(|error| error.to_string())
    };
    let error = needs("libcuda-of-tests.so.1", "sse3", None).unwrap_err();
    assert!(error.contains("CUDA needs libcuda-of-tests.so.1 (NVIDIA's driver, 580 or newer)"), "{error}");
    // The first library is not a driver. The second one is a driver that supports CUDA 12.8.
    let error = needs("libm.so.6", "sse3", Some(13_000)).unwrap_err();
    assert!(error.contains("it does not report its version"), "{error}");
    let driver = folder.path().join("libdriver.so");
    let (code, library) = (driver.with_extension("c"), driver.to_str().unwrap());
    fs::write(&code, "int cuDriverGetVersion(int *version) { *version = 12080; return 0; }").unwrap();
    let mut compiler = std::process::Command::new("cc");
    assert!(compiler.args(["-shared", "-fPIC", "-o"]).args([&driver, &code]).status().unwrap().success());
    let error = needs(library, "sse3", Some(13_000)).unwrap_err();
    assert!(error.contains("it supports CUDA 12.8, and 13.0 is needed"), "{error}");
    // If `is_x86_feature_detected` does not know a feature, it counts as present.
    needs(library, "no-such-instruction", Some(12_080)).unwrap();
}
