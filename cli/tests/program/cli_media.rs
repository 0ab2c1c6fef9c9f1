//! Images in `run`, `chat`, `list` and `plan`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use crate::cli_support::{User, demo, text};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

/// The demo model in a folder with a projector and a picture of one pixel.
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
    assert!(beside.contains("dot.bmp: picture of 1 x 1 pixels, 4 tokens"), "{beside}");
    assert!(beside.contains("mmproj"), "{beside}");
    assert!(!answer.trim().is_empty());
    // Named, and by llama.cpp's words, with the same picture twice.
    let named = run(&["-mm", projector.to_str().unwrap(), "--image", &format!("{picture},{picture}")]);
    assert_eq!((named.0, named.2.matches("dot.bmp: picture").count()), (Some(0), 2), "{}", named.2);
    // Without an image no projector is loaded, and without a projector no image is taken.
    let plain = run(&[]);
    assert!(plain.0 == Some(0) && !plain.2.contains("mmproj"), "{}", plain.2);
    let refused = run(&["--image", &picture, "--no-mmproj"]);
    assert!(refused.0 == Some(1) && refused.2.contains("--mmproj FILE"), "{}", refused.2);
    let missing = run(&["--image", "no such file.png"]);
    assert!(missing.0 == Some(1) && missing.2.contains("no such file.png"), "{}", missing.2);
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
    assert!(words.contains("takes images or sound through") && words.contains("mmproj-model-f16.gguf"), "{words}");
    let with = format!("mmproj={}", projector.display());
    let plan = user.says(&["plan", &model, "--with", &with]);
    assert!(plan.contains("mmproj"), "{plan}");
}
