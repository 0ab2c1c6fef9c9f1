//! `autoplace ps`: the models that this user's processes have loaded.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::cli_support::{User, demo, text};

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
        let said = text(&command(&["ps"]).output().unwrap().stdout);
        assert!(said.contains(&server.id().to_string()), "{said}");
        let doctor = text(&command(&["doctor"]).output().unwrap().stdout);
        assert!(doctor.contains("loaded by autoplace"), "{doctor}");
        server.kill().unwrap();
        server.wait().unwrap();
        // Its worker ends with it.
        let begun = std::time::Instant::now();
        while !listed().is_empty() {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", listed());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
