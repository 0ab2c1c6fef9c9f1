//! Models are fetched from a hub into the cache. The tests cover complete fetches, refusals, and what is left after
//! each fault.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use autoplace_hub::{Error, Hub};

use crate::world::{World, hub, repository};
use test_support::hub_server::{COMMIT, Content, Fault};

pub(crate) const FILE: &str = "thing-Q4_K_M.gguf";

impl World {
    pub(crate) fn part(&self, path: &str) -> PathBuf {
        self.cache.path().join("models--some--thing").join(path)
    }

    fn fetch(&self) -> Result<PathBuf, Error> {
        fetch(&self.hub(), |_, _| Continue(()))
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.part(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// All files in the snapshot, including links.
    pub(crate) fn snapshot(&self) -> Vec<String> {
        self.names(&format!("snapshots/{COMMIT}"))
    }

    fn blobs(&self) -> Vec<String> {
        self.names("blobs")
    }
}

pub(crate) fn fetch(hub: &Hub, progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<PathBuf, Error> {
    hub.fetch(&repository(hub)?.candidates[0], progress)
}

/// The name of the part file of a blob.
fn arriving(content: &Content) -> String {
    format!("{}.autoplace.part", content.etag)
}

/// Bytes that never repeat, so that no range is equal to another.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_model_is_fetched_into_the_shared_layout_and_the_next_time_nothing_is() {
    for content in [Content::large(bytes(3 << 20)), Content::small(bytes(70_000))] {
        let world = World::new([(FILE, content.clone()), ("README.md", Content::small(b"# a".to_vec()))]);
        let mut progress = Vec::new();
        let path = fetch(&world.hub(), |done, total| {
            progress.push((done, total));
            Continue(())
        });
        let path = path.unwrap();
        assert_eq!(path, world.part("snapshots").join(COMMIT).join(FILE));
        assert_eq!(world.blobs(), [&content.etag[..]]);
        assert_eq!(fs::read_to_string(world.part("refs/main")).unwrap(), COMMIT);
        let size = fs::metadata(&path).unwrap().len();
        assert!(progress.is_sorted() && progress.iter().all(|step| step.1 == size), "{progress:?}");
        #[cfg(unix)]
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs").join(&content.etag));

        world.server.seen();
        assert_eq!(world.fetch().unwrap(), path);
        assert!(world.server.seen().iter().all(|request| request.path.starts_with("/api/")));
        let offline = world.hub().offline(true);
        assert_eq!(fetch(&offline, |_, _| Continue(())).unwrap(), path);
        assert_eq!(offline.cached(&repository(&offline).unwrap().candidates[0]), Some(path));
        assert!(world.server.seen().is_empty());
    }
}

#[test]
fn each_fault_ends_in_a_whole_file_or_in_a_typed_error() {
    use Fault::{Cut, Status, WrongBytes, WrongLength};
    let data = bytes(300_000);
    let now = "Retry-After: 0\r\n";
    // The third element contains the words of the error that is expected. It is empty if the whole file must arrive.
    for (path, faults, words) in [
        ("/api/", vec![Status(429, now), Status(503, now)], &[][..]),
        ("/resolve/", vec![Status(429, "RateLimit: \"api\";r=0;t=0\r\n"), Status(500, "")], &[]),
        ("/storage/", vec![Status(503, ""); 2], &[]),
        ("/storage/", vec![Cut(1000), Cut(2000), Cut(1), Cut(70_000), Cut(10)], &[]),
        ("/storage/", vec![Cut(1000), Status(403, "")], &[]),
        ("/storage/", vec![Cut(1000), Fault::Whole], &[]),
        ("/api/", vec![Cut(20)], &[]),
        ("/api/", vec![Status(502, ""); 3], &["Status {", "attempts: 3"]),
        ("/storage/", vec![Status(429, now); 3], &["Status {", "status: 429"]),
        ("/storage/", vec![Cut(0); 3], &["Network {", "attempts: 3"]),
        ("/storage/", vec![WrongLength], &["Answer {"]),
        ("/storage/", vec![WrongBytes], &["Hash {"]),
        ("/storage/", vec![Status(418, "")], &["Answer {"]),
        ("/api/", vec![Status(401, "")], &["Refused {", "name a token by HF_TOKEN"]),
        ("/resolve/", vec![Status(403, "X-Error-Code: GatedRepo\r\n")], &["Refused {", "accept its licence"]),
        ("/api/", vec![Status(404, "")], &["Missing {"]),
        ("/api/", vec![Status(404, "X-Error-Code: RevisionNotFound\r\n")], &["Missing {", "no such revision"]),
        ("/resolve/", vec![Status(302, "Location: file:///etc/passwd\r\n")], &["Answer {"]),
        ("/resolve/", vec![Status(302, "")], &["Answer {"]),
        ("/resolve/", vec![Status(302, "Location: /some/thing/resolve/x/y\r\n"); 20], &["Answer {", "redirects"]),
    ] {
        let world = World::new([(FILE, Content::large(data.clone()))]);
        world.server.fail(path, faults.clone());
        match world.fetch() {
            Ok(path) if words.is_empty() => {
                assert_eq!(fs::read(path).unwrap(), data, "{faults:?}");
                assert_eq!(world.server.faults_left(), 0, "{faults:?}");
            }
            Err(error) if !words.is_empty() => {
                let said = format!("{error:?}");
                assert!(words.iter().all(|word| said.contains(word)), "{faults:?}: {said}");
                assert!(
                    world.snapshot().is_empty() && world.blobs().iter().all(|blob| blob.ends_with(".autoplace.part"))
                );
                // Files that a fault has left do not prevent the next fetch.
                while world.server.faults_left() > 0 {
                    let _ = world.fetch();
                }
                assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data, "{faults:?}");
            }
            result => panic!("{path}: {faults:?}: {result:?}"),
        }
    }
}

#[test]
fn a_server_says_how_long_to_wait() {
    let world = World::new([(FILE, Content::large(bytes(1000)))]);
    // The pause before the second attempt is an hour here, but the server asks for a wait of its own.
    let hub = Hub::new(world.server.endpoint(), world.cache.path());
    let hub = hub.patience(Duration::from_secs(20), 3, Duration::from_secs(3600));
    world.server.fail("/api/", [Fault::Status(429, "Retry-After: 0\r\n")]);
    world.server.fail("/api/", [Fault::Status(429, "RateLimit: \"api\";r=0;t=0\r\n")]);
    assert_eq!(repository(&hub).unwrap().candidates.len(), 1);
    assert_eq!(world.server.faults_left(), 0);
}

#[test]
fn a_server_that_is_silent_or_not_there_is_an_error() {
    let world = World::new([(FILE, Content::large(bytes(1000)))]);
    world.server.fail("/api/", [Fault::Silence, Fault::Silence]);
    let impatient = |hub: Hub| hub.patience(Duration::from_millis(200), 2, Duration::from_millis(1));
    let error = repository(&impatient(world.hub())).unwrap_err();
    assert!(matches!(error, Error::Network { attempts: 2, .. }), "{error}");
    // Nobody listens on port 1, so the connection is refused.
    let error = repository(&impatient(hub("http://127.0.0.1:1", world.cache.path()))).unwrap_err();
    assert!(matches!(error, Error::Network { attempts: 2, .. }), "{error}");
    // The name of a host has no part of more than 63 letters, so this one is not found, with or without a network.
    let unknown = hub(&format!("http://{}.example", "a".repeat(64)), world.cache.path());
    let unknown = unknown.patience(Duration::from_secs(20), 6, Duration::from_millis(1));
    let error = repository(&unknown).unwrap_err();
    assert!(matches!(error, Error::Network { attempts: 2, .. }), "{error}");
}

#[test]
fn a_token_goes_to_the_hub_and_nowhere_else() {
    let world = World::new([(FILE, Content::large(bytes(1000)))]);
    let hub = world.hub().token("hf_secret").unwrap();
    fetch(&hub, |_, _| Continue(())).unwrap();
    let seen = world.server.seen();
    let at = |storage: bool| seen.iter().filter(move |request| request.at_storage == storage);
    assert_eq!((at(false).count(), at(true).count()), (2, 1));
    assert!(at(false).all(|request| request.authorization.as_deref() == Some("Bearer hf_secret")));
    assert!(at(true).all(|request| request.authorization.is_none()));
    assert!(!format!("{hub:?}").contains("secret"));

    for (path, fault) in [("/api/", Fault::Status(401, "")), ("/storage/", Fault::Status(403, ""))] {
        let world = World::new([(FILE, Content::large(bytes(1000)))]);
        world.server.fail(path, [fault]);
        let error = fetch(&world.hub().token("hf_secret").unwrap(), |_, _| Continue(())).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(path) && !text.contains("secret") && !text.contains("Signature"), "{text}");
    }
}

#[test]
fn a_model_larger_than_the_disk_is_refused_before_anything_is_fetched() {
    let world = World::new([(FILE, Content::hollow(Vec::new(), 1 << 60))]);
    let error = world.fetch().unwrap_err();
    assert!(matches!(error, Error::Space { needed, free, .. } if needed == 1 << 60 && free < needed), "{error}");
    assert!(world.server.seen().iter().all(|request| request.path.starts_with("/api/")));
    assert!(world.blobs().is_empty());
}

#[test]
fn a_cancelled_fetch_is_resumed() {
    let data = bytes(1 << 20);
    let world = World::new([(FILE, Content::large(data.clone()))]);
    world.server.slow(Duration::from_millis(10));
    let error = fetch(&world.hub(), |done, _| if done > 0 { Break(()) } else { Continue(()) }).unwrap_err();
    let Error::Cancelled { done, total, .. } = error else { panic!("{error}") };
    assert!(0 < done && done < total && total == data.len() as u64);
    let [incomplete] = &world.blobs()[..] else { panic!("{:?}", world.blobs()) };
    assert_eq!(fs::metadata(world.part("blobs").join(incomplete)).unwrap().len(), done);
    assert!(world.snapshot().is_empty());

    world.server.slow(Duration::ZERO);
    world.server.seen();
    assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data);
    let ranges: Vec<_> = world.server.seen().into_iter().filter_map(|request| request.range).collect();
    assert!(ranges.iter().all(|range| *range == (done..total)), "{ranges:?}");
}

#[test]
fn a_beginning_that_is_damaged_or_too_long_is_fetched_again() {
    let data = bytes(100_000);
    let content = Content::large(data.clone());
    for beginning in [vec![7; 50_000], vec![7; 100_000], vec![7; 100_001]] {
        let world = World::new([(FILE, content.clone())]);
        fs::create_dir_all(world.part("blobs")).unwrap();
        fs::write(world.part("blobs").join(arriving(&content)), beginning).unwrap();
        assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data);
    }
}

#[test]
fn two_fetches_of_the_same_file_transfer_it_once() {
    let data = bytes(1 << 20);
    let world = World::new([(FILE, Content::large(data.clone()))]);
    world.server.slow(Duration::from_millis(1));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data));
        }
    });
    assert_eq!(world.server.seen().iter().filter(|request| request.at_storage).count(), 1);
}

#[test]
fn a_part_file_that_is_removed_during_the_fetch_is_not_lost() {
    let data = bytes(1 << 20);
    let content = Content::large(data.clone());
    let world = World::new([(FILE, content.clone())]);
    world.server.slow(Duration::from_millis(1));
    let mut removed = 0;
    let path = fetch(&world.hub(), |done, _| {
        // `hf cache prune` removes part files in the same way.
        if done > 0 && fs::remove_file(world.part("blobs").join(arriving(&content))).is_ok() {
            removed += 1;
        }
        Continue(())
    });
    assert_eq!(fs::read(path.unwrap()).unwrap(), data);
    assert_eq!((removed, world.blobs()), (1, vec![content.etag.clone()]));
    // The bytes were transferred only once.
    assert_eq!(world.server.seen().iter().filter(|request| request.at_storage).count(), 1);
}

#[test]
fn a_part_file_of_another_process_is_left_alone() {
    let data = bytes(1 << 20);
    let content = Content::large(data.clone());
    let world = World::new([(FILE, content.clone())]);
    fs::create_dir_all(world.part("blobs")).unwrap();
    let held = world.part("blobs").join(arriving(&content));
    let mut other = fs::OpenOptions::new().append(true).create(true).open(&held).unwrap();
    other.lock().unwrap();
    other.write_all(&data[..1000]).unwrap();
    let path = world.fetch().unwrap();
    // If the other process writes later, that does not reach the blob.
    other.write_all(b"and more").unwrap();
    assert_eq!(fs::read(path).unwrap(), data);
    assert_eq!(world.blobs(), [content.etag.clone(), arriving(&content)]);
    // If a fetch is cancelled while another fetch is running, it removes its own part file.
    fs::remove_file(world.part("blobs").join(&content.etag)).unwrap();
    world.server.slow(Duration::from_millis(10));
    let error = fetch(&world.hub(), |done, _| if done > 0 { Break(()) } else { Continue(()) }).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    assert_eq!(world.blobs(), [arriving(&content)]);
}

#[test]
fn a_blob_that_another_tool_has_written_is_kept_for_its_hash_alone() {
    let data = bytes(100_000);
    let content = Content::large(data.clone());
    for (there, requests) in [(data.clone(), 0), (vec![7; 100_000], 1)] {
        let world = World::new([(FILE, content.clone())]);
        fs::create_dir_all(world.part("blobs")).unwrap();
        fs::write(world.part("blobs").join(&content.etag), there).unwrap();
        assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data);
        assert_eq!(world.server.seen().iter().filter(|request| request.at_storage).count(), requests);
    }
}

#[test]
fn a_listing_may_say_null_for_no_files() {
    let world = World::new([(FILE, Content::large(bytes(4)))]);
    world.server.list(serde_json::json!({ "sha": COMMIT, "siblings": null }).to_string());
    let error = world.fetch().unwrap_err();
    assert!(matches!(error, Error::NoModel { .. }), "{error}");
}

#[test]
fn names_in_a_listing_cannot_lead_out_of_the_cache() {
    let sha = "a".repeat(64);
    let listing = |commit: &str, name: &str, sha: &str| {
        let lfs = serde_json::json!({ "sha256": sha, "size": 4, "pointerSize": 1 });
        let sibling = serde_json::json!({ "rfilename": name, "size": 4, "blobId": "b", "lfs": lfs });
        serde_json::json!({ "sha": commit, "siblings": [sibling] }).to_string()
    };
    let names =
        "../../e.gguf /e.gguf C:\\e.gguf a/../../e.gguf a//b.gguf ./a.gguf \\\\host\\a.gguf a\0b.gguf".split(' ');
    for listing in names.map(|name| listing(COMMIT, name, &sha)).chain([
        listing("../../evil", FILE, &sha),
        listing(COMMIT, FILE, "../../../evil"),
        listing(COMMIT, FILE, &"../a".repeat(16)),
        "[]".to_owned(),
        "<html>".to_owned(),
    ]) {
        let world = World::new([(FILE, Content::large(bytes(4)))]);
        world.server.list(listing.clone());
        let error = world.fetch().unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{listing}: {error}");
        assert_eq!(fs::read_dir(world.cache.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_split_model_is_there_with_all_of_its_files_or_with_none() {
    let names: Vec<String> = (1..=6).map(|n| format!("BF16/thing-BF16-{n:05}-of-00006.gguf")).collect();
    let files = names.iter().enumerate().map(|(n, name)| (&name[..], Content::large(bytes(50_000 + n))));
    let world = World::new(files);
    world.server.fail(
        "/resolve/0123456789abcdef0123456789abcdef01234567/BF16/thing-BF16-00005",
        [Fault::Status(404, "X-Error-Code: EntryNotFound\r\n")],
    );
    let error = world.fetch().unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    assert!(world.snapshot().is_empty() && !world.part("refs/main").exists());
    assert!(world.hub().cached(&repository(&world.hub()).unwrap().candidates[0]).is_none());

    let first = world.fetch().unwrap();
    assert!(first.ends_with(&names[0]));
    let snapshot = world.part("snapshots").join(COMMIT);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(fs::metadata(snapshot.join(name)).unwrap().len(), 50_000 + n as u64);
    }
    fs::remove_file(snapshot.join(&names[3])).unwrap();
    let offline = world.hub().offline(true);
    assert!(matches!(fetch(&offline, |_, _| Continue(())), Err(Error::Offline { .. })));
    // The bytes of the blob are still in the cache, so nothing is requested.
    world.server.seen();
    world.fetch().unwrap();
    assert!(world.server.seen().iter().all(|request| !request.at_storage));
    assert!(snapshot.join(&names[3]).exists());
}

#[test]
fn offline_no_request_is_sent_and_missing_files_are_named() {
    let world = World::new([(FILE, Content::large(bytes(1000)))]);
    let online = repository(&world.hub()).unwrap();
    let offline = world.hub().offline(true);
    world.server.seen();
    for error in
        [repository(&offline).unwrap_err(), offline.fetch(&online.candidates[0], |_, _| Continue(())).unwrap_err()]
    {
        assert!(matches!(error, Error::Offline { .. }), "{error}");
        assert!(error.to_string().contains("some/thing") && error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    }
    assert!(offline.headers(&online).iter().all(|header| matches!(header, Err(Error::Offline { .. }))));
    assert!(world.server.seen().is_empty());
}

#[test]
fn a_name_with_a_quantisation_has_its_models_only() {
    let files =
        ["Q4_K_M", "Q8_0", "UD-Q4_K_XL"].map(|quant| (format!("thing-{quant}.gguf"), Content::large(bytes(100))));
    let world = World::new(files.iter().map(|(name, file)| (&name[..], file.clone())));
    let named = |name: &str| world.hub().repository(&name.parse().unwrap());
    let quants: Vec<_> = named("hf:some/thing")
        .unwrap()
        .candidates
        .iter()
        .map(|candidate| candidate.quant().unwrap().to_owned())
        .collect();
    assert_eq!(quants, ["Q4_K_M", "Q8_0", "UD-Q4_K_XL"]);
    for name in ["hf:some/thing:q8_0@main", "hf:some/thing:Q4_K_XL"] {
        assert_eq!(named(name).unwrap().candidates.len(), 1);
    }
    let error = named("hf:some/thing:Q2_K").unwrap_err();
    assert_eq!(error.to_string(), "some/thing has no model of Q2_K; it has Q4_K_M, Q8_0, UD-Q4_K_XL");
}

/// The environment variables for [`child`]: the endpoint and the cache.
const CHILD: [&str; 2] = ["AUTOPLACE_HUB_TEST_ENDPOINT", "AUTOPLACE_HUB_TEST_CACHE"];

/// A process that fetches from this endpoint into this cache.
pub(crate) fn child_of(endpoint: &str, cache: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "fetch::child"]).env(CHILD[0], endpoint).env(CHILD[1], cache);
    child
}

#[test]
#[ignore = "the child of another test"]
fn child() {
    let [Ok(endpoint), Ok(cache)] = CHILD.map(std::env::var) else { return };
    fetch(&hub(&endpoint, Path::new(&cache)), |_, _| Continue(())).unwrap();
}

#[test]
fn a_fetch_killed_anywhere_goes_on_to_the_same_file() {
    let data = bytes(1 << 20);
    let mut killed = 0;
    for byte in bytes(50) {
        let point = (u64::from(byte) << 12) + 1234;
        let world = World::new([(FILE, Content::large(data.clone()))]);
        world.server.slow(Duration::from_millis(1));
        // The fetch stands still there, however late this process sees it.
        world.server.hold_at(point);
        let mut child = child_of(&world.server.endpoint(), world.cache.path());
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while world.server.sent() < point && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());

        let path = world.part("snapshots").join(COMMIT).join(FILE);
        assert!(!path.exists() || fs::read(&path).unwrap() == data, "killed at {point}");
        world.server.slow(Duration::ZERO);
        world.server.hold_at(0);
        assert_eq!(fs::read(world.fetch().unwrap()).unwrap(), data, "killed at {point}");
        assert_eq!(world.blobs().len(), 1, "killed at {point}");
    }
    assert!(killed > 40, "{killed} of 50 were killed before their end");
}
