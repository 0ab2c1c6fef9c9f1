//! Hugging Face's client in Python, which uses the same hub and the same cache.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fetch::{FILE, bytes, child_of, fetch};
use crate::world::{World, repository};
use test_support::hub_server::{COMMIT, Content, Seen};

/// A file in a folder. It is stored in git itself, and not in the storage for large files.
const SMALL: &str = "more/thing-Q8_0.gguf";

fn world() -> (World, [(&'static str, Vec<u8>); 2]) {
    let files = [(FILE, bytes(3 << 20)), (SMALL, bytes(70_000))];
    let [large, small] = files.clone();
    (World::new([(FILE, Content::large(large.1)), (SMALL, Content::small(small.1))]), files)
}

impl World {
    fn client(&self, arguments: &[&str]) -> Command {
        let python = std::env::var_os("AUTOPLACE_PYTHON").expect("AUTOPLACE_PYTHON is set");
        let mut command = Command::new(python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/client.py")).args(arguments);
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HUB_CACHE", self.cache.path());
        command.env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1").env("HF_HUB_DISABLE_TELEMETRY", "1");
        command
    }

    /// The paths that the client has printed.
    fn paths(&self, command: &mut Command) -> Vec<PathBuf> {
        let output = command.output().expect("Python starts");
        let [said, beside] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{said}{beside}");
        said.lines().map(PathBuf::from).collect()
    }

    /// Starts a client. It runs until it receives a line. Returns the process, and the first line that it has printed.
    fn running(&self, arguments: &[&str]) -> (Child, String) {
        let mut command = self.client(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim_end().to_owned())
    }

    fn snapshot_of(&self, files: &[(&str, Vec<u8>)]) -> Vec<PathBuf> {
        let snapshot = self.part("snapshots").join(COMMIT);
        files.iter().map(|(name, _)| snapshot.join(name)).chain([snapshot.clone()]).collect()
    }
}

fn end(mut child: Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// Whether a request asks for bytes of a file.
fn fetches(seen: &Seen) -> bool {
    seen.at_storage || seen.method == "GET" && seen.path.contains("/resolve/")
}

#[test]
#[ignore = "wants Hugging Face's client: `cargo xtask test clients` installs it, and runs this"]
fn files_of_the_official_client_are_found_without_the_hub() {
    let (world, files) = world();
    let paths = world.paths(&mut world.client(&["fetch", FILE, SMALL]));
    assert_eq!(paths, world.snapshot_of(&files));
    assert_eq!(world.server.seen().iter().filter(|request| fetches(request) && request.at_storage).count(), 1);

    let offline = world.hub().offline(true);
    let found = repository(&offline).unwrap();
    for (candidate, (name, data)) in [&found.candidates[1], &found.candidates[0]].into_iter().zip(&files) {
        let path = offline.cached(candidate).unwrap();
        assert!(path.ends_with(name) && fs::read(path).unwrap() == *data, "{name}");
    }
    let hub = world.hub();
    for candidate in &repository(&hub).unwrap().candidates {
        hub.fetch(candidate, |_, _| Continue(())).unwrap();
    }
    assert!(world.server.seen().iter().all(|request| !fetches(request)));
}

#[test]
#[ignore = "wants Hugging Face's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_finds_and_accepts_what_was_fetched_here() {
    let (world, files) = world();
    let hub = world.hub();
    for candidate in &repository(&hub).unwrap().candidates {
        hub.fetch(candidate, |_, _| Continue(())).unwrap();
    }
    world.server.seen();
    let found = world.paths(world.client(&["find", COMMIT, FILE, SMALL]).env("HF_HUB_OFFLINE", "1"));
    assert_eq!(found, world.snapshot_of(&files));
    assert!(world.server.seen().is_empty());
    assert_eq!(world.paths(&mut world.client(&["fetch", FILE, SMALL])), found);
    let seen = world.server.seen();
    assert!(!seen.is_empty() && !seen.iter().any(fetches));
}

#[test]
#[ignore = "wants Hugging Face's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_prunes_none_of_our_files() {
    let data = bytes(1 << 20);
    let content = Content::large(data.clone());
    let world = World::new([(FILE, content.clone())]);
    world.server.slow(Duration::from_millis(10));
    fetch(&world.hub(), |done, _| if done > 0 { Break(()) } else { Continue(()) }).unwrap_err();
    let theirs = format!("{}.0123abcd.incomplete", content.etag);
    fs::write(world.part("blobs").join(&theirs), &data[..10]).unwrap();
    let pruned = world.paths(&mut world.client(&["prune"]));
    assert_eq!(pruned, [PathBuf::from(theirs)]);
    world.server.slow(Duration::ZERO);
    world.server.seen();
    assert_eq!(fs::read(fetch(&world.hub(), |_, _| Continue(())).unwrap()).unwrap(), data);
    let begun = world.server.seen().into_iter().filter_map(|request| request.range).all(|range| range.start > 0);
    assert!(begun, "what had arrived was fetched again");
}

#[test]
#[ignore = "wants Hugging Face's client: `cargo xtask test clients` installs it, and runs this"]
fn each_client_waits_while_the_other_fetches_a_blob() {
    let data = bytes(8 << 20);
    let content = Content::large(data.clone());
    let world = World::new([(FILE, content.clone())]);
    let (child, held) = world.running(&["hold", &content.etag]);
    assert_eq!(held, "held");
    let (mut child, mut calls) = (Some(child), 0);
    let path = fetch(&world.hub(), |done, _| {
        calls += 1;
        if calls == 10 {
            assert!(done == 0 && !world.server.seen().iter().any(fetches), "{done} bytes came beside the lock");
            end(child.take().unwrap());
        }
        Continue(())
    });
    assert!(child.is_none() && fs::read(path.unwrap()).unwrap() == data);

    let world = World::new([(FILE, content)]);
    // At this speed, it would take a minute to send the file. The server stays slow until the other client waits for
    // the lock.
    world.server.slow(Duration::from_millis(60));
    let (mut other, mut waited, mut seen) = (None, 0, Vec::new());
    fetch(&world.hub(), |done, _| {
        if done > 0 && other.is_none() {
            other = Some(world.client(&["fetch", FILE]).stdout(Stdio::null()).spawn().expect("Python starts"));
        }
        seen.extend(world.server.seen());
        waited += u32::from(seen.iter().any(|request| request.method == "HEAD"));
        if waited == 10 {
            world.server.slow(Duration::ZERO);
        }
        Continue(())
    })
    .unwrap();
    assert!(waited >= 10, "the other client did not come while this one fetched");
    assert!(other.unwrap().wait().unwrap().success());
    seen.extend(world.server.seen());
    assert_eq!(seen.iter().filter(|request| request.at_storage).count(), 1, "both fetched it");
}

/// Trusted authorities are those of the system. If `SSL_CERT_FILE` is set, those in that file.
#[test]
#[cfg(target_os = "linux")]
#[ignore = "wants the packages of Hugging Face's client: `cargo xtask test clients` installs them, and runs this"]
fn a_hub_over_https_needs_a_trusted_authority_and_cannot_redirect_to_http() {
    for (name, content) in [(SMALL, Content::small(bytes(70_000))), (FILE, Content::large(bytes(70_000)))] {
        let world = World::new([(name, content)]);
        let address = world.server.endpoint();
        let (server, said) = world.running(&["tls", address.rsplit(':').next().unwrap()]);
        let (port, authority) = said.split_once(' ').unwrap();
        let child = |authority: &str| {
            let mut child = child_of(&format!("https://localhost:{port}"), world.cache.path());
            let output = child.env("SSL_CERT_FILE", authority).output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        // This authority belongs to another server. It has not signed this server's certificate.
        let (stranger, other) = world.running(&["tls", "1"]);
        let (believed, why) = child(other.split_once(' ').unwrap().1);
        assert!(!believed && why.contains("UnknownIssuer") && world.server.seen().is_empty(), "{why}");
        let (fetched, why) = child(authority);
        match name {
            SMALL => assert_eq!((fetched, world.snapshot()), (true, vec!["more".to_owned()]), "{why}"),
            // The listing was read over https, but the address of the storage is plain http.
            _ => assert!(!fetched && why.contains("a redirect from https to http"), "{why}"),
        }
        end(server);
        end(stranger);
    }
}
