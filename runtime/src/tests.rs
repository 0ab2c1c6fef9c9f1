//! Sets of made-up libraries. Faults must be found before any library is opened, and the best set must be chosen.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{Choice, Error, MANIFEST, Manifest, Requirement, Set, find, installed, remove};

const BUILD: &str = "autoplace-llama-sys 0.1.0, llama.cpp 0123456789abcdef, shim 0123456789abcdef";
const TARGET: &str = "x86_64-linux-gnu";

/// Creates a set with this name and these backends below a folder.
fn made(folder: &Path, name: &str, backends: &[&str]) -> Set {
    let set = folder.join(name);
    fs::create_dir_all(set.join("licences")).unwrap();
    for file in ["libggml-base.so.0", "libllama.so.0", "licences/MIT"] {
        fs::write(set.join(file), format!("{file} of {name}")).unwrap();
    }
    let mut manifest = Manifest::new(name, BUILD, TARGET);
    manifest.backends = backends.iter().map(ToString::to_string).collect();
    manifest.libraries = vec!["libggml-base.so.0".to_owned(), "libllama.so.0".to_owned()];
    manifest.write(&set).unwrap();
    Set::read(&set).unwrap()
}

fn taken(folder: &Path) -> Result<Choice, Error> {
    find(Some(folder), BUILD, TARGET, |_| Ok(()))
}

#[test]
fn errors_name_the_damaged_file_and_a_complete_set_is_accepted() {
    let folder = TempDir::new().unwrap();
    type Damage = (&'static str, fn(&Path), &'static [&'static str]);
    let damages: [Damage; 8] = [
        (
            "a byte",
            |set| fs::write(set.join("libllama.so.0"), "libllama.so.0 of A").unwrap(),
            &["libllama.so.0: its hash is", "damaged"],
        ),
        (
            "half",
            |set| fs::write(set.join("libllama.so.0"), "libll").unwrap(),
            &["it has 5 bytes, but 18 in the manifest", "damaged"],
        ),
        (
            "a library",
            |set| fs::remove_file(set.join("libggml-base.so.0")).unwrap(),
            &["libggml-base.so.0: ", "lists it with 22 bytes", "damaged"],
        ),
        ("a licence", |set| fs::remove_dir_all(set.join("licences")).unwrap(), &["damaged"]),
        (
            "one more",
            |set| fs::write(set.join("libggml-cuda.so"), "of somebody's").unwrap(),
            &["libggml-cuda.so: the manifest does not list this library"],
        ),
        ("the manifest", |set| fs::write(set.join(MANIFEST), "{").unwrap(), &["no runtime: ", "line 1"]),
        (
            "another build",
            |set| drop(manifest_for(set, &BUILD.replace('3', "4"), TARGET).write(set)),
            &["the runtime is of ", "01244567", "this program needs ", BUILD],
        ),
        (
            "another target",
            |set| drop(manifest_for(set, BUILD, "aarch64-linux-gnu").write(set)),
            &["the runtime is for aarch64-linux-gnu, but"],
        ),
    ];
    for (case, damage, words) in damages {
        let set = made(folder.path(), "a", &["CPU"]);
        assert_eq!(taken(&set.folder).unwrap().set, set, "{case}");
        damage(&set.folder);
        let error = taken(&set.folder).unwrap_err().to_string();
        let begins = error.starts_with(set.folder.to_str().unwrap());
        assert!(begins && words.iter().all(|word| error.contains(word)), "{case}: {error}");
        fs::remove_dir_all(&set.folder).unwrap();
    }
    let error = taken(&folder.path().join("nowhere")).unwrap_err();
    assert!(matches!(&error, Error::NoManifest { .. }), "{error}");
}

fn manifest_for(set: &Path, build: &str, target: &str) -> Manifest {
    let mut manifest = Manifest::read(set).unwrap();
    (manifest.build, manifest.target) = (build.to_owned(), target.to_owned());
    manifest
}

#[test]
fn a_manifest_names_nothing_outside_its_folder() {
    let folder = TempDir::new().unwrap();
    let set = made(folder.path(), "a", &["CPU"]);
    let text = fs::read_to_string(set.folder.join(MANIFEST)).unwrap();
    for (inside, outside) in [
        ("\"licences/MIT\":", "\"../b\":"),
        ("\"licences/MIT\":", "\"/etc/passwd\":"),
        ("\"licences/MIT\":", "\"C:\\\\b\":"),
        ("\"name\": \"a\"", "\"name\": \"../a\""),
        ("\"name\": \"a\"", "\"name\": \"a/b\""),
        ("\"libllama.so.0\"\n", "\"libother.so\"\n"),
    ] {
        assert!(text.contains(inside), "{inside}");
        fs::write(set.folder.join(MANIFEST), text.replace(inside, outside)).unwrap();
        let error = Set::read(&set.folder).unwrap_err();
        assert!(matches!(error, Error::NoManifest { .. }), "{outside}: {error}");
    }
}

#[test]
fn the_best_usable_set_is_chosen_with_the_reasons_against_better_ones() {
    let folder = TempDir::new().unwrap();
    made(folder.path(), "cpu", &["CPU"]);
    made(folder.path(), "vulkan", &["CPU", "Vulkan"]);
    let mut cuda = made(folder.path(), "cuda", &["CPU", "CUDA"]);
    let library = "libcublas.so.13".to_owned();
    let (backend, source) = ("CUDA".to_owned(), "CUDA 13".to_owned());
    cuda.manifest.requires = vec![Requirement { backend, library, source, cuda: None }];
    cuda.manifest.clone().write(&cuda.folder).unwrap();
    fs::create_dir(folder.path().join("no-set")).unwrap();
    // A set that is being installed must not be found.
    fs::rename(made(folder.path(), "half", &["CPU", "CUDA"]).folder, folder.path().join(".new")).unwrap();
    assert_eq!(taken(folder.path()).unwrap().set.manifest.name, "cuda");
    let without_cuda = |set: &Set| match set.manifest.requires.first() {
        Some(needed) => Err(format!("{} is not there", needed.library)),
        None => Ok(()),
    };
    let choice = find(Some(folder.path()), BUILD, TARGET, without_cuda).unwrap();
    assert_eq!(choice.set.manifest.name, "vulkan");
    let reasons: Vec<String> = choice.passed_over.iter().map(ToString::to_string).collect();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(reason.contains("libcublas.so.13 is not there"), "{reason}");
    let none = find(Some(folder.path()), BUILD, TARGET, |_| Err("no".to_owned())).unwrap_err();
    assert!(matches!(&none, Error::None { looked, .. } if looked.len() == 4), "{none}");
    // No library of an incomplete set may be opened.
    fs::write(cuda.folder.join("libggml-cuda.so"), "of somebody's").unwrap();
    let whole = |set: &Set| if set.manifest.name == "cuda" { panic!("opened") } else { Ok(()) };
    assert_eq!(find(Some(folder.path()), BUILD, TARGET, whole).unwrap().set.manifest.name, "vulkan");
}

#[test]
fn a_set_is_removed_by_its_name_and_the_others_stay() {
    let folder = TempDir::new().unwrap();
    let names = |folder: &Path| -> Vec<String> {
        installed(folder).into_iter().map(|set| set.unwrap().manifest.name).collect()
    };
    made(folder.path(), "a", &["CPU"]);
    made(folder.path(), "b", &["CPU"]);
    assert_eq!(remove(folder.path(), "a").unwrap().manifest.name, "a");
    assert_eq!(names(folder.path()), ["b"]);
    for absent in ["a", "../b", ""] {
        assert!(matches!(remove(folder.path(), absent), Err(Error::NoManifest { .. })));
    }
}

#[cfg(feature = "install")]
mod install {
    use std::io::Write;
    use std::path::PathBuf;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use sha2::{Digest, Sha256};
    use tar::{Builder, EntryType, Header};

    use super::*;
    use crate::{Progress, Source};

    /// An archive of a folder. In the archive, the folder has this name.
    fn archive(folder: &Path, name: &str) -> Vec<u8> {
        let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        tar.append_dir_all(name, folder).unwrap();
        tar.into_inner().unwrap().finish().unwrap()
    }

    /// An archive with this single entry. (The crate's own writer refuses such paths.)
    fn hostile(path: &str, kind: EntryType) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        if kind == EntryType::Symlink {
            header.set_link_name("/etc").unwrap();
        }
        header.set_size(0);
        header.set_cksum();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(header.as_bytes()).unwrap();
        gzip.write_all(&[0; 1024]).unwrap();
        gzip.finish().unwrap()
    }

    fn sha256(bytes: &[u8]) -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
    }

    struct World {
        folder: TempDir,
        archive: PathBuf,
    }

    impl World {
        fn new(archive: &[u8]) -> Self {
            let folder = TempDir::new().unwrap();
            let path = folder.path().join("archive.tar.gz");
            fs::write(&path, archive).unwrap();
            Self { archive: path, folder }
        }

        fn home(&self) -> PathBuf {
            self.folder.path().join("installed")
        }

        fn install(&self, sha256: Option<&str>) -> Result<Set, Error> {
            let source = Source::new(self.archive.to_str().unwrap());
            crate::install(&source, sha256, &self.home(), &mut |_| true)
        }
    }

    #[test]
    fn a_file_or_folder_is_installed_completely_under_its_name_even_repeatedly() {
        let source = TempDir::new().unwrap();
        let set = made(source.path(), "set-0.1.0", &["CPU"]);
        for name in ["any-name", "."] {
            let bytes = archive(&set.folder, name);
            let world = World::new(&bytes);
            let there = world.install(Some(&sha256(&bytes))).unwrap();
            assert_eq!(there.folder, world.home().join("set-0.1.0"));
            assert_eq!(there.manifest, set.manifest);
            // A damaged set is repaired, and a set of another version stays.
            fs::write(there.folder.join("libllama.so.0"), "").unwrap();
            made(&world.home(), "set-0.0.9", &["CPU"]);
            assert_eq!(world.install(None).unwrap(), there);
            there.check().unwrap();
            let folder = Source::Folder(set.folder.clone());
            assert_eq!(crate::install(&folder, None, &world.home(), &mut |_| true).unwrap(), there);
            assert_eq!(installed(&world.home()).len(), 2);
        }
    }

    #[test]
    fn another_runtime_of_the_same_name_is_replaced_once_the_new_one_is_complete() {
        let source = TempDir::new().unwrap();
        let set = made(source.path(), "set", &["CPU"]);
        let world = World::new(&archive(&set.folder, "set"));
        let other = made(&world.home(), "set", &["CPU", "CUDA"]);
        assert_ne!(other.manifest, set.manifest);
        // The remains of an installation that was killed while it replaced a runtime.
        fs::create_dir_all(world.home().join(".old/half")).unwrap();
        assert!(matches!(world.install(Some("123")), Err(Error::Source { .. })));
        assert_eq!(installed(&world.home()), [Ok(other)]);
        let there = world.install(None).unwrap();
        assert_eq!(there.manifest, set.manifest);
        assert_eq!(installed(&world.home()), [Ok(there)]);
        assert!(!world.home().join(".old").exists());
    }

    #[test]
    fn anything_but_a_complete_archive_is_refused_and_leaves_nothing() {
        let source = TempDir::new().unwrap();
        let set = made(source.path(), "set", &["CPU"]);
        let good = archive(&set.folder, "set");
        fs::write(set.folder.join("libllama.so.0"), "damaged").unwrap();
        let damaged = archive(&set.folder, "set");
        let half = &good[..good.len() / 2];
        let nothing = archive(&set.folder.join("licences"), "licences");
        let invalid = made(source.path(), "invalid", &["CPU"]).folder;
        fs::write(invalid.join(MANIFEST), "{}").unwrap();
        let invalid = archive(&invalid, "invalid");
        let other = sha256(b"another");
        for (case, bytes, hash, expected) in [
            ("half of it", half, None, "not a complete .tar.gz"),
            ("half of it, whose hash is known", half, Some(&*sha256(&good)), "but "),
            ("no archive", b"<html>", None, "not a complete .tar.gz"),
            ("another hash", &good, Some(&*other), &*other.to_ascii_lowercase()),
            ("no hash", &good, Some("123"), "64 hexadecimal digits"),
            ("no manifest", &nothing, None, "runtime.json"),
            ("an invalid manifest", &invalid, None, "missing field"),
            ("a damaged file", &damaged, None, "in the manifest"),
            ("a path that leads out", &hostile("../evil", EntryType::Regular), None, "`../evil`"),
            ("a path of the system", &hostile("/tmp/evil", EntryType::Regular), None, "`/tmp/evil`"),
            ("a link", &hostile("evil", EntryType::Symlink), None, "`evil`"),
            ("a device", &hostile("evil", EntryType::Char), None, "`evil`"),
        ] {
            let world = World::new(bytes);
            let error = world.install(hash).unwrap_err().to_string();
            assert!(error.contains(expected), "{case}: {error}");
            assert!(installed(&world.home()).iter().all(Result::is_err), "{case}");
            assert!(!world.folder.path().join("evil").exists(), "{case}");
        }
        let folder = Source::Folder(set.folder);
        let refused = crate::install(&folder, None, source.path(), &mut |_| true);
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    }

    #[test]
    fn a_cancelled_installation_leaves_nothing_and_the_next_one_works() {
        let source = TempDir::new().unwrap();
        let set = made(source.path(), "set", &["CPU"]);
        let world = World::new(&archive(&set.folder, "set"));
        let install = |from: &Source, most: u64| {
            let mut seen = Progress { done: 0, total: None };
            let ended = crate::install(from, None, &world.home(), &mut |progress| {
                seen = progress;
                progress.done < most
            });
            (ended, seen)
        };
        for from in [Source::File(world.archive.clone()), Source::Folder(set.folder.clone())] {
            let (ended, _) = install(&from, 1);
            assert!(matches!(ended, Err(Error::Cancelled { done: 1.., .. })), "{ended:?}");
            let left: Vec<_> = fs::read_dir(world.home()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, [".lock"]);
        }
        // The remains of a killed installation are also removed.
        fs::create_dir_all(world.home().join(".new/half")).unwrap();
        for from in [Source::File(world.archive.clone()), Source::Folder(set.folder.clone())] {
            let (there, seen) = install(&from, u64::MAX);
            there.unwrap();
            assert_eq!(seen.total, Some(seen.done), "{from:?}");
        }
        assert!(!world.home().join(".new").exists());
    }

    #[cfg(feature = "fetch")]
    #[test]
    fn an_address_is_fetched_only_with_its_hash() {
        use std::io::Read;
        use std::net::TcpListener;

        let source = TempDir::new().unwrap();
        let set = made(source.path(), "set", &["CPU"]);
        let bytes = archive(&set.folder, "set");
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/set.tar.gz?token=secret", server.local_addr().unwrap());
        let into = source.path().join("installed");
        let fetch = |hash: Option<&str>| crate::install(&Source::new(&url), hash, &into, &mut |_| true);
        let error = fetch(None).unwrap_err().to_string();
        assert!(error.contains("SHA-256") && !error.contains("secret"), "{error}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for body in [&bytes[..], &bytes[..bytes.len() - 9]] {
                    let (mut client, _) = server.accept().unwrap();
                    let _ = client.read(&mut [0; 4096]).unwrap();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
                    client.write_all(head.as_bytes()).unwrap();
                    client.write_all(body).unwrap();
                }
            });
            assert_eq!(fetch(Some(&sha256(&bytes))).unwrap().manifest, set.manifest);
            // The connection is cut.
            remove(&into, "set").unwrap();
            assert!(matches!(fetch(Some(&sha256(&bytes))), Err(Error::Source { .. })));
        });
        assert!(installed(&into).iter().all(Result::is_err));
    }
}
