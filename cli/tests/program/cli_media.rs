//! Images in the verbs `run`, `chat`, `list` and `plan`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use crate::cli_support::{User, demo, text};
use test_support::hub_server::{Content, Server};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

/// The demo model in a folder, with a projector and a picture of one pixel.
fn seeing(user: &User) -> (String, PathBuf, String) {
    let folder = user.path("models");
    fs::create_dir_all(&folder).unwrap();
    let model = folder.join("model.gguf");
    fs::copy(demo(), &model).unwrap();
    let projector = folder.join("mmproj-model-f16.gguf");
    mmproj::named("Small LLaVA").write_sparse(&projector).unwrap();
    fill(&projector);
    let picture = user.path("dot.bmp");
    let mut file = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
    file.resize(54, 0);
    file.extend([255, 0, 255, 0]);
    fs::write(&picture, file).unwrap();
    let [model, picture] = [model, picture].map(|path| path.to_str().unwrap().to_owned());
    (model, projector, picture)
}

const SHORT: [&str; 8] = ["--template", "chatml", "--temp", "0", "-n", "12", "-c", "512"];

#[test]
fn an_image_is_shown_with_the_projector_beside_the_model_and_a_line_says_its_size() {
    let user = User::new();
    let (model, projector, picture) = seeing(&user);
    let run = |more: &[&str]| {
        let output = user.autoplace(&[&["run", &model, "What is this?"], more, &SHORT].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, answer, beside) = run(&["--image", &picture]);
    assert_eq!(code, Some(0), "{beside}");
    assert!(beside.contains("dot.bmp: image of 1 x 1 pixels, 4 tokens"), "{beside}");
    assert!(beside.contains("mmproj"), "{beside}");
    assert!(!answer.trim().is_empty());
    // llama.cpp's flag names the projector, and the same picture is given twice.
    let named = run(&["-mm", projector.to_str().unwrap(), "--image", &format!("{picture},{picture}")]);
    assert_eq!((named.0, named.2.matches("dot.bmp: image").count()), (Some(0), 2), "{}", named.2);
    // Without an image, no projector is loaded. Without a projector, an image is refused.
    let plain = run(&[]);
    assert!(plain.0 == Some(0) && !plain.2.contains("mmproj"), "{}", plain.2);
    let refused = run(&["--image", &picture, "--no-mmproj"]);
    assert!(refused.0 == Some(1) && refused.2.contains("--mmproj FILE"), "{}", refused.2);
}

#[test]
fn a_wrong_image_is_an_error_before_the_model_is_loaded() {
    let user = User::new();
    let (model, _, picture) = seeing(&user);
    let cut = user.path("cut.bmp");
    fs::write(&cut, &fs::read(&picture).unwrap()[..40]).unwrap();
    let cut = cut.to_str().unwrap();
    for (file, reason) in [
        ("no such file.png", "No such file"),
        (cut, "cut.bmp: "),
        (model.as_str(), "not a PNG, JPEG, WebP, GIF or BMP file"),
        ("https://example.com/a.png", "nothing is fetched from an address"),
    ] {
        let output = user.autoplace(&[&["run", &model, "What is this?", "--image", file][..], &SHORT].concat());
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(reason), "{file}: {said}");
        assert!(!said.contains("layers"), "{file}: {said}");
    }
}

#[test]
fn a_plan_and_a_load_state_the_same_bytes_of_a_projector() {
    let user = User::new();
    let (model, projector, picture) = seeing(&user);
    let run = user.autoplace(&[&["run", &model, "What is this?", "--image", &picture][..], &SHORT].concat());
    let loaded = text(&run.stderr);
    let stated = loaded.lines().find(|line| line.starts_with("mmproj")).unwrap();
    let with = format!("mmproj={}", projector.display());
    let plan = user.says(&["plan", &model, "--with", &with]);
    assert!(plan.contains(stated), "{stated}: {plan}");
    // The bound of the arithmetic alone is larger.
    let bound = user.says(&["plan", &model, "--with", &with, "--no-probe"]);
    assert!(bound.contains("mmproj") && !bound.contains(stated), "{stated}: {bound}");
    // A file for another model is refused, as a load refuses it.
    mmproj::named("Small Qwen3-VL").write_sparse(&projector).unwrap();
    let other = user.autoplace(&["plan", &model, "--with", &with]);
    let said = text(&other.stderr);
    assert!(
        other.status.code() == Some(1) && said.contains("another model: its rows have 512 elements, but"),
        "{said}"
    );
}

#[test]
fn a_chat_through_a_pipe_shows_the_image_with_its_first_message() {
    let user = User::new();
    let (model, _, picture) = seeing(&user);
    let mut command = user.command(&[&["chat", &model, "--image", &picture][..], &SHORT].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"What is this?\nAnd what else?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr).matches("dot.bmp").count(), 1);
}

#[test]
fn a_list_and_a_plan_name_the_projector() {
    let user = User::new();
    let (model, projector, _) = seeing(&user);
    let folder = user.path("models");
    let words = user.says(&["list", folder.to_str().unwrap()]);
    assert!(words.contains("takes images through") && words.contains("mmproj-model-f16.gguf"), "{words}");
    let json: serde_json::Value =
        serde_json::from_str(&user.says(&["list", "--json", folder.to_str().unwrap()])).unwrap();
    assert_eq!(json["models"][0]["mmproj"], projector.to_str().unwrap(), "{json}");
    let with = format!("mmproj={}", projector.display());
    let plan = user.says(&["plan", &model, "--with", &with]);
    assert!(plan.contains("mmproj") && !plan.contains("also load"), "{plan}");
    // A plan for only the model has a note about the projector, which `chat` and `serve` would load too.
    let alone = user.says(&["plan", &model]);
    assert!(alone.contains(&format!("also load {}: --with {with} plans it", projector.display())), "{alone}");
}

#[test]
fn a_model_of_a_hub_uses_the_projector_of_its_repository() {
    let user = User::new();
    let (model, projector, picture) = seeing(&user);
    let small = Content::large(fs::read(&projector).unwrap());
    let other = mmproj::named("LLaVA 1.5").encoded().unwrap();
    let files = [
        ("demo-Q8_0.gguf", Content::large(fs::read(&model).unwrap())),
        ("mmproj-F16.gguf", small),
        ("mmproj-other-F16.gguf", Content::hollow(other.0, other.1)),
    ];
    let server = Server::new(files);
    let asked = |args: &[&str]| {
        let mut command = user.command(args);
        command.env("HF_ENDPOINT", server.endpoint()).env("HF_HOME", user.path("hf")).stdin(Stdio::null());
        let output = command.output().expect("the program starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let run = |more: &[&str]| asked(&[&["run", "hf:some/thing", "What is this?"], more, &SHORT].concat());
    let refused = run(&["--image", &picture]);
    assert!(
        refused.0 == Some(1) && refused.2.contains("demo-Q8_0 and mmproj-F16 are not here: --yes"),
        "{}",
        refused.2
    );
    // A prompt without an image needs no projector.
    let plain = run(&["--yes"]);
    assert!(plain.0 == Some(0) && !plain.2.contains("is the projector"), "{}", plain.2);
    // The model is in the cache, but no projector is. The user is not asked, because the model can be used without it.
    let without = run(&["--image", &picture]);
    assert!(without.2.contains("mmproj-F16 is not here: --yes fetches its"), "{}", without.2);
    assert!(without.0 == Some(1) && without.2.contains("--mmproj FILE"), "{}", without.2);
    let none = run(&["--yes", "--image", &picture, "--no-mmproj"]);
    assert!(none.0 == Some(1) && !none.2.contains("is the projector"), "{}", none.2);
    let (code, answer, said) = run(&["--yes", "--image", &picture]);
    assert!(code == Some(0) && said.contains("mmproj-F16 is the projector, of 1 that go with the model"), "{said}");
    assert!(said.contains("dot.bmp: image of 1 x 1 pixels, 4 tokens"), "{said}");
    // From here on, nothing is fetched and no request goes to the hub.
    let sent = server.sent();
    assert_eq!(run(&["--image", &picture]).1, answer);
    assert_eq!(server.sent(), sent);
    let local = user.path("alone");
    fs::create_dir(&local).unwrap();
    fs::copy(&model, local.join("model.gguf")).unwrap();
    let local = local.join("model.gguf");
    let local = local.to_str().unwrap();
    // A local model, with a projector that comes from a repository.
    let named =
        [&["run", local, "What is this?", "--image", &picture, "--mmproj", "hf:some/thing:f16"][..], &SHORT].concat();
    assert_eq!(asked(&named).1, answer);
    let (_, listed, _) = asked(&["list"]);
    assert!(listed.contains("takes images through") && listed.contains("mmproj-F16.gguf"), "{listed}");
}
