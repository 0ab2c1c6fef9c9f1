//! Models in the stores of other tools. The stores are made in a temporary folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use autoplace_hub::{Environment, Models, SkipReason, Store};
use autoplace_planner::gguf::{Builder, Error, Header, TensorType};
use serde_json::json;
use tempfile::TempDir;

use test_support::synthetic::shapes::TINY;

/// A home folder that contains the stores of all tools.
struct Home {
    root: TempDir,
}

impl Home {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a small model whose header contains this name.
    fn model(&self, path: &str, name: &str) -> PathBuf {
        self.file(path, TINY.builder().str("general.basename", name).to_bytes().unwrap())
    }

    fn models(&self) -> Models {
        Models::in_stores(&Environment::new(self.root.path()).variable("LOCALAPPDATA", self.path(".cache")))
    }

    fn in_folder(&self, path: &str) -> Models {
        Models::in_folders([self.path(path)]).unwrap()
    }

    /// Adds a tag to Ollama's store.
    fn ollama(&self, name: &str, layers: &[(&str, &str)]) {
        let layers = layers.iter().map(|(media, digest)| {
            json!({ "mediaType": format!("application/vnd.ollama.image.{media}"), "digest": digest, "size": 1 })
        });
        let manifest = json!({ "schemaVersion": 2, "layers": layers.collect::<Vec<_>>() });
        self.file(&format!(".ollama/models/manifests/{name}"), manifest.to_string());
    }

    /// Every file, with its length and the time of its last change.
    fn listing(&self) -> BTreeMap<PathBuf, (u64, SystemTime)> {
        let (mut all, mut left) = (BTreeMap::new(), vec![self.root.path().to_owned()]);
        while let Some(path) = left.pop() {
            let file = path.symlink_metadata().unwrap();
            if file.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            all.insert(path, (file.len(), file.modified().unwrap()));
        }
        all
    }
}

fn digest(letter: char) -> String {
    letter.to_string().repeat(64)
}

fn listed(models: &Models) -> Vec<(&str, Option<&str>, Store)> {
    models.models.iter().map(|model| (&model.name[..], model.quant.as_deref(), model.store)).collect()
}

/// The names of the files that were skipped, each with the reason.
fn passed(models: &Models) -> BTreeMap<String, SkipReason> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    models.skipped.iter().map(|skipped| (name(&skipped.path), skipped.why.clone())).collect()
}

#[cfg(unix)]
fn link(to: impl AsRef<Path>, at: PathBuf) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(to, at).unwrap();
}

#[test]
#[cfg(unix)]
fn hugging_faces_cache_has_a_model_per_file_whatever_the_snapshots() {
    let home = Home::new();
    let repository = ".cache/huggingface/hub/models--some--Thing-GGUF";
    let at = |path: &str| home.path(&format!("{repository}/{path}"));
    for (blob, name) in [("1", "old"), ("2", "new"), ("3", "projector")] {
        home.model(&format!("{repository}/blobs/{blob}"), name);
    }
    home.file(&format!("{repository}/refs/main"), "new\n");
    home.file(&format!("{repository}/blobs/4.incomplete"), b"GGUF and so on");
    home.file(&format!("{repository}/blobs/5.incomplete"), b"{\"json\": true}");
    home.file(&format!("{repository}/blobs/6.downloadInProgress"), b"GGUF and so on");
    home.file(&format!("{repository}/blobs/7.0123abcd.incomplete"), b"GGUF and so on");
    home.file(&format!("{repository}/blobs/8.autoplace.part"), b"GGUF and so on");
    // If the whole blob is there too, part files are leftovers, even if they are empty.
    home.file(&format!("{repository}/blobs/1.4567cdef.incomplete"), b"");
    home.file(&format!("{repository}/blobs/2.incomplete"), b"GGUF and so on");
    home.file(&format!("{repository}/blobs/3.autoplace.part"), b"GGUF and so on");
    for (file, blob) in [
        ("a/thing-Q4_K_M.gguf", "1"),
        ("new/thing-Q4_K_M.gguf", "2"),
        ("a/UD-Q8_0/thing.gguf", "2"),
        ("new/mmproj-F16.gguf", "3"),
        ("new/thing-Q2_K.gguf", "gone"),
    ] {
        let up = "../".repeat(file.matches('/').count() + 1);
        link(format!("{up}blobs/{blob}"), at(&format!("snapshots/{file}")));
    }
    home.file(".cache/huggingface/hub/datasets--some--data/x.gguf", "not looked at");
    // The client has asked for a file that the repository lacks, and for no other.
    home.file(".cache/huggingface/hub/models--some--Other/.no_exist/new/x.gguf", "");
    let models = home.models();
    let name = ("some/Thing-GGUF", Some("Q4_K_M"), Store::HuggingFace);
    assert_eq!(listed(&models), [name, name]);
    assert_eq!(models.models[1].files, [at("snapshots/new/thing-Q4_K_M.gguf")]);
    assert!(models.models.iter().all(|model| model.other_places.is_empty()));
    let expected = [
        ("1.4567cdef.incomplete", SkipReason::Leftover),
        ("2.incomplete", SkipReason::Leftover),
        ("3.autoplace.part", SkipReason::Leftover),
        ("4.incomplete", SkipReason::PartialDownload),
        ("6.downloadInProgress", SkipReason::PartialDownload),
        ("7.0123abcd.incomplete", SkipReason::PartialDownload),
        ("8.autoplace.part", SkipReason::PartialDownload),
        ("mmproj-F16.gguf", SkipReason::Projector),
        ("thing-Q2_K.gguf", SkipReason::BrokenLink),
    ];
    assert_eq!(passed(&models), expected.map(|(name, why)| (name.to_owned(), why)).into());
}

#[test]
fn ollamas_manifests_say_which_blob_is_which_model() {
    let home = Home::new();
    home.model(&format!(".ollama/models/blobs/sha256-{}", digest('a')), "a");
    home.file(&format!(".ollama/models/blobs/sha256-{}-partial", digest('d')), "");
    home.file(&format!(".ollama/models/blobs/sha256-{}-partial-0", digest('d')), "{}");
    home.file(&format!(".ollama/models/blobs/sha256-{}", digest('e')), "safetensors");
    let blob = format!("sha256:{}", digest('a'));
    home.ollama("registry.ollama.ai/library/llama3.2/3b", &[("license", "sha256:x"), ("model", &blob)]);
    home.ollama("registry.ollama.ai/library/llama3.2/latest", &[("model", &blob)]);
    home.ollama("registry.ollama.ai/me/other/q8_0", &[("adapter", &blob)]);
    home.ollama("hf.co/some/Gone-GGUF/Q4_K_M", &[("model", &format!("sha256:{}", digest('b')))]);
    home.ollama("h/n/escape/t", &[("model", "sha256:../../../../etc/passwd")]);
    home.ollama("h/n/other/t1", &[("model", &format!("sha256-{}", digest('e')))]);
    home.file(".ollama/models/manifests/h/n/broken/t2", "{");
    let models = home.models();
    assert_eq!(listed(&models), [("llama3.2:3b", None, Store::Ollama)]);
    assert_eq!(models.models[0].other_places[0].name, "llama3.2:latest");
    let json = serde_json::to_value(&models.models[0]).unwrap();
    assert_eq!(json["also"][0]["name"], "llama3.2:latest");
    assert_eq!(models.models[0].header().unwrap().architecture().unwrap(), "llama");
    let passed = passed(&models);
    assert_eq!(passed[&format!("sha256-{}-partial", digest('d'))], SkipReason::PartialDownload);
    assert_eq!(passed[&format!("sha256-{}", digest('e'))], SkipReason::NotGguf(b"safe".to_vec()));
    for (file, problem) in [("Q4_K_M", "is missing"), ("t", "is not a digest"), ("t2", "EOF")] {
        assert!(matches!(&passed[file], SkipReason::Manifest(why) if why.contains(problem)), "{:?}", passed[file]);
    }
    assert_eq!(passed.len(), 5);
    assert_eq!(listed(&home.in_folder(".ollama/models")), listed(&models));
}

#[test]
fn a_model_of_ollamas_cloud_has_no_file_and_is_not_reported() {
    let home = Home::new();
    let cloud = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": { "mediaType": "application/vnd.docker.container.image.v1+json", "digest": "", "size": 0 },
        "layers": null, "manifests": null,
    });
    home.file(".ollama/models/manifests/registry.ollama.ai/library/gpt-oss/120b-cloud", cloud.to_string());
    fs::create_dir_all(home.path(".ollama/models/blobs")).unwrap();
    let models = home.models();
    assert!(models.models.is_empty() && models.skipped.is_empty(), "{:?}", models.skipped);
}

/// huggingface_hub 2.4: the bytes are in `CACHE/blobs/AB/HASH`, and the blob of each repository is a link to that file.
#[test]
#[cfg(unix)]
fn a_blob_that_two_repositories_share_is_one_model_with_both_names() {
    let home = Home::new();
    let cache = ".cache/huggingface/hub";
    home.model(&format!("{cache}/blobs/ab/{}", digest('b')), "shared");
    home.file(&format!("{cache}/blobs/.huggingface-shared-blobs"), "1\n");
    for name in ["other--Thing-GGUF", "some--Thing-GGUF"] {
        let repository = format!("{cache}/models--{name}");
        link(format!("../../blobs/ab/{}", digest('b')), home.path(&format!("{repository}/blobs/{}", digest('c'))));
        let pointer = home.path(&format!("{repository}/snapshots/new/thing-Q8_0.gguf"));
        link(format!("../../blobs/{}", digest('c')), pointer);
    }
    let models = home.models();
    assert_eq!(listed(&models), [("some/Thing-GGUF", Some("Q8_0"), Store::HuggingFace)]);
    let also: Vec<&str> = models.models[0].other_places.iter().map(|place| &place.name[..]).collect();
    assert_eq!((also, models.skipped), (vec!["other/Thing-GGUF"], vec![]));
}

#[test]
fn the_list_of_a_manifest_names_the_blob_for_llama_cpp() {
    let home = Home::new();
    home.model(&format!(".ollama/models/blobs/sha256-{}", digest('a')), "a");
    let blob = |letter| format!("sha256:{}", digest(letter));
    let layers = |media: &str| {
        let layer = json!({ "mediaType": format!("application/vnd.ollama.image.{media}"), "digest": blob('a') });
        json!({ "layers": [layer] })
    };
    home.file(&format!(".ollama/models/blobs/sha256-{}", digest('c')), layers("model").to_string());
    let nothing = json!({ "layers": [{ "mediaType": null, "digest": null }] });
    let list = json!({ "manifests": [layers("tensor"), nothing, { "digest": blob('c') }] });
    home.file(".ollama/models/manifests-v2/registry.ollama.ai/me/new/8b-q4_K_M", list.to_string());
    fs::create_dir_all(home.path(".ollama/models/manifests")).unwrap();
    assert_eq!(listed(&home.models()), [("me/new:8b-q4_K_M", Some("Q4_K_M"), Store::Ollama)]);
}

#[test]
fn lm_studio_and_llama_cpp_have_files_in_folders() {
    let home = Home::new();
    home.model(".lmstudio/models/maker/Thing-GGUF/thing-Q6_K.gguf", "a");
    home.model(".cache/llama.cpp/some_Thing-GGUF_thing-IQ4_XS.gguf", "b");
    home.file(".cache/llama.cpp/x.gguf.downloadInProgress", "GGUF");
    home.file(".cache/llama.cpp/empty.gguf", "");
    home.file(".cache/llama.cpp/page.GGUF", "<!doctype html>");
    home.file(".cache/llama.cpp/manifest=some=thing=latest.json", "{}");
    home.file(".lmstudio-home-pointer", format!("{}\n", home.path("moved").display()));
    home.model("moved/models/maker/Other-GGUF/other-Q8_0.gguf", "d");
    home.file("moved/settings.json", json!({ "downloadsFolder": home.path("disk"), "other": 1 }).to_string());
    home.model("disk/loose-F16.gguf", "c");
    let models = home.models();
    let expected = [
        ("loose-F16", Some("F16"), Store::LmStudio),
        ("maker/Other-GGUF", Some("Q8_0"), Store::LmStudio),
        ("maker/Thing-GGUF", Some("Q6_K"), Store::LmStudio),
        ("some_Thing-GGUF_thing-IQ4_XS", Some("IQ4_XS"), Store::LlamaCpp),
    ];
    if cfg!(not(target_os = "macos")) {
        assert_eq!(listed(&models), expected);
        let expected = [
            ("empty.gguf", SkipReason::NotGguf(Vec::new())),
            ("page.GGUF", SkipReason::NotGguf(b"<!do".to_vec())),
            ("x.gguf.downloadInProgress", SkipReason::PartialDownload),
        ];
        assert_eq!(passed(&models), expected.map(|(name, why)| (name.to_owned(), why)).into());
    }
}

#[test]
fn a_split_model_is_one_model_and_without_a_shard_it_is_skipped() {
    let home = Home::new();
    for shard in 1..=2_u16 {
        let tensor = format!("blk.{shard}.attn_q.weight");
        let shards =
            Builder::new("llama").u16("split.no", shard - 1).u16("split.count", 2).i32("split.tensors.count", 2);
        let bytes = shards.tensor(&tensor, TensorType::F32, &[4, 2]).to_bytes().unwrap();
        home.file(&format!("x/whole-Q4_0-0000{shard}-of-00002.gguf"), &bytes);
        home.file(&format!("x/part-0000{shard}-of-00003.gguf"), &bytes);
    }
    let models = home.in_folder("x");
    assert_eq!(listed(&models), [("whole-Q4_0", Some("Q4_0"), Store::Folder)]);
    let whole = &models.models[0];
    assert_eq!(whole.bytes, whole.files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>());
    assert_eq!(whole.header().unwrap().shards().len(), whole.files.len());
    assert!(models.skipped[0].to_string().ends_with(": the shard x/part-00003-of-00003.gguf is missing"));
}

#[test]
fn a_download_that_ended_early_is_found_by_its_header() {
    let home = Home::new();
    let whole = fs::read(home.model("a/whole.gguf", "a")).unwrap();
    home.file("b/half.gguf", &whole[..whole.len() - 1000]);
    let models = home.in_folder("b");
    assert!(matches!(models.models[0].header(), Err(Error::TensorOutside { .. })));
    assert!(models.models[0].planned_file().is_err() && models.duplicates().is_empty());
}

#[test]
fn copies_are_duplicates_and_other_weights_of_the_same_length_are_not() {
    let home = Home::new();
    let path = home.model("a/one.gguf", "same");
    let file = fs::read(&path).unwrap();
    let mut trained = file.clone();
    let weights = Header::open(&path).unwrap().tensors().next().unwrap().offset();
    trained[usize::try_from(weights).unwrap()] ^= 1;
    home.file("b/two.gguf", &file);
    home.file("b/other.gguf", &trained);
    home.model("b/renamed.gguf", "emas");
    let models = home.in_folder("");
    assert!(models.models.windows(2).all(|pair| pair[0].bytes == pair[1].bytes));
    let names: Vec<&str> = models.models.iter().map(|model| &model.name[..]).collect();
    assert_eq!(names, ["one", "other", "renamed", "two"]);
    assert_eq!(models.duplicates(), [[0, 3]]);
}

#[test]
#[cfg(unix)]
fn links_are_ways_to_one_model_and_loops_end() {
    let home = Home::new();
    let file = home.model(".lmstudio/models/maker/thing/a-Q4_0.gguf", "a");
    link(&file, home.path(".cache/llama.cpp/linked-Q4_0.gguf"));
    fs::hard_link(&file, home.path(".cache/llama.cpp/hard-Q4_0.gguf")).unwrap();
    link("..", home.path(".lmstudio/models/maker/up"));
    link("../../..", home.path(".lmstudio/models/maker/thing/home"));
    link("self.gguf", home.path(".lmstudio/models/self.gguf"));
    let models = Models::in_folders([home.path(".cache"), home.path(".lmstudio")]).unwrap();
    assert_eq!(listed(&models), [("hard-Q4_0", Some("Q4_0"), Store::Folder)]);
    let also: Vec<&str> = models.models[0].other_places.iter().map(|place| &place.name[..]).collect();
    assert_eq!(also, ["linked-Q4_0", "a-Q4_0"]);
    assert!(matches!(passed(&models)["self.gguf"], SkipReason::Unreadable(_)));
}

#[test]
#[cfg(unix)]
fn a_folder_of_somebody_else_and_a_pipe_stop_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.model("x/a.gguf", "a");
    home.model("x/closed/b.gguf", "b");
    home.model("x/listed/below/d.gguf", "d");
    let socket = std::os::unix::net::UnixListener::bind(home.path("x/c.gguf")).unwrap();
    let may = |folder, mode| fs::set_permissions(home.path(folder), fs::Permissions::from_mode(mode)).unwrap();
    may("x/closed", 0o000);
    may("x/listed", 0o444);
    // The superuser can read every folder, so for that user the test expects something else.
    let is_open = fs::read_dir(home.path("x/closed")).is_ok();
    let models = home.in_folder("x");
    may("x/closed", 0o755);
    may("x/listed", 0o755);
    drop(socket);
    assert_eq!(models.models.len(), if is_open { 3 } else { 1 });
    let passed = passed(&models);
    assert_eq!(passed["c.gguf"].to_string(), "cannot be read: not a regular file");
    for folder in ["closed", "below"] {
        let denied = passed.get(folder).map(ToString::to_string);
        assert_eq!(denied.is_none(), is_open, "{folder}");
        assert!(denied.is_none_or(|denied| denied.contains("denied")));
    }
}

#[test]
fn thousands_of_files_are_searched_and_nothing_is_written() {
    let home = Home::new();
    let bytes = Builder::new("llama").tensor("output.weight", TensorType::F32, &[4]).to_bytes().unwrap();
    for index in 0..2_000 {
        home.file(&format!("x/{}/{index}.gguf", index % 100), &bytes);
    }
    let before = home.listing();
    let models = home.in_folder("x");
    assert_eq!((models.models.len(), models.skipped.len()), (2_000, 0));
    let same = models.duplicates();
    assert_eq!((same.len(), same[0].len()), (1, 2_000));
    assert_eq!(before, home.listing());
}

#[test]
fn a_missing_folder_is_empty_unless_it_was_named() {
    let home = Home::new();
    let models = home.models();
    assert!(models.models.is_empty() && models.skipped.is_empty());
    assert!(Models::in_stores(&Environment::default()).models.is_empty());
    home.file(".ollama/models", "no folder");
    assert_eq!(home.models().skipped.len(), 1);
    let error = Models::in_folders([home.path("gone")]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be read: ", home.path("gone").display())), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_name_that_is_no_text_is_found_and_written_as_json() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let file = home.model("x/a.gguf", "a");
    fs::rename(file, home.path("x").join(std::ffi::OsStr::from_bytes(b"\xff\n.gguf"))).unwrap();
    let models = home.in_folder("x");
    assert!(models.models[0].header().is_ok());
    let json = serde_json::to_value(&models.models[0]).unwrap();
    assert!(json["files"][0].as_str().unwrap().ends_with("/x/\u{fffd}\n.gguf"), "{json}");
}

#[test]
fn folders_that_are_too_deep_are_reported() {
    let home = Home::new();
    home.model(&format!("x/{}a.gguf", "d/".repeat(16)), "a");
    home.model(&format!("y/{}b.gguf", "d/".repeat(17)), "b");
    assert_eq!(listed(&home.in_folder("x")).len(), 1);
    let models = home.in_folder("y");
    assert!(models.models.is_empty());
    assert_eq!(models.skipped[0].why, SkipReason::TooManyEntries(16));
}
