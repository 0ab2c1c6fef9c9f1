//! `autoplace ps`: the models that processes of this user have loaded.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::cli_support::{User, demo, text};
use test_support::{settled, wait};

#[test]
fn a_model_that_is_served_is_listed_until_its_server_ends_or_is_killed() {
    let user = User::new();
    let runtime = tempfile::tempdir().unwrap();
    let command = |args: &[&str]| {
        let mut command = user.command(args);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command
    };
    let listed = || {
        let output = command(&["ps", "--json"]).output().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        value["models"].as_array().unwrap().clone()
    };
    assert!(listed().is_empty());
    let said = text(&command(&["ps"]).output().unwrap().stdout);
    assert!(said.starts_with("no process"), "{said}");
    for isolated in [&[][..], &["--isolated"]] {
        let mut server = command(&[&["serve", &demo(), "--port", "0", "--ctx", "256"], isolated].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening"), "{line}");
        let models = listed();
        assert_eq!(models.len(), 1, "{models:?}");
        let (process, application) = (models[0]["process"].as_u64(), models[0]["application"].as_u64());
        let id = Some(u64::from(server.id()));
        assert_eq!(if isolated.is_empty() { process } else { application }, id, "{models:?}");
        assert_eq!((&models[0]["n_ctx"], &models[0]["program"]), (&256.into(), &"autoplace".into()));
        assert!(models[0]["measured_tokens_per_second"].is_null(), "{models:?}");
        assert_eq!(models[0]["gives"], false, "{models:?}");
        let address = line.rsplit_once("http://").unwrap().1.trim().trim_end_matches('/').to_owned();
        let body = r#"{"prompt": "And it came to pass", "max_tokens": 100, "ignore_eos": true}"#;
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // A thread of its own writes the speed, perhaps only after the answer.
        wait("has a measured speed", || listed()[0]["measured_tokens_per_second"].is_number());
        let measured = settled(|| listed()[0]["measured_tokens_per_second"].as_f64()).unwrap();
        assert!(measured > 0.0, "{measured}");
        let said = text(&command(&["ps"]).output().unwrap().stdout);
        assert!(said.contains(&format!("{measured:.1}")), "{said}");
        assert!(said.contains(&server.id().to_string()), "{said}");
        let doctor = text(&command(&["doctor"]).output().unwrap().stdout);
        assert!(doctor.contains("loaded by autoplace"), "{doctor}");
        server.kill().unwrap();
        server.wait().unwrap();
        // When its application ends, the worker ends too.
        wait("ends with its server", || listed().is_empty());
    }
}
