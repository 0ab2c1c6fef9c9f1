//! The bundle's `run.sh` on machines whose nvcc, nvidia-smi and cmake are scripts. The scripts record their calls.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use tempfile::TempDir;

/// The lock is taken while a program is being written and while a program is being started. A starting process inherits
/// its parent's open files, and a program that is open for writing cannot be started.
static PROGRAMS: Mutex<()> = Mutex::new(());

/// The programs that `run.sh` uses and every Linux has. PATH contains only these.
const SYSTEM: &str =
    "awk bash cat cmp cp date dirname grep head mkdir mv nproc paste readlink rm sed sleep sort tail tee tr true";

const H200: &str = "9.0, NVIDIA H200";

/// An unpacked bundle on a machine with all build requirements.
struct Bundle {
    folder: TempDir,
    /// The value of CUDA_HOME.
    toolkit: Option<PathBuf>,
}

impl Bundle {
    fn new() -> Self {
        let bundle = Self { folder: tempfile::tempdir().unwrap(), toolkit: None };
        for folder in ["bin", "cuda", "model", "tools", "system"] {
            fs::create_dir(bundle.path(folder)).unwrap();
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bundle/run.sh");
        bundle.write("run.sh", &fs::read_to_string(script).unwrap());
        bundle.write("BUILD.json", "{ \"version\": \"1\" }\n");
        bundle.write("model/autoplace-demo-q8_0.gguf", "");
        bundle.write("cards", &format!("{H200}\n"));
        for name in SYSTEM.split(' ') {
            symlink(found(name), bundle.path("system").join(name)).unwrap();
        }
        bundle.program("tools/ninja", "");
        bundle.program("tools/c++", "");
        bundle.program(
            "tools/nvcc",
            "case $1 in
                --version) echo 'Cuda compilation tools, release 12.4, V12.4.131' ;;
                --list-gpu-arch) printf 'compute_%s\\n' 75 80 86 90 ;;
            esac",
        );
        bundle.program(
            "tools/nvidia-smi",
            "if [ $# -eq 0 ]; then echo '| Driver Version: 550.54   CUDA Version: 12.4  |'; exit; fi
             cat \"$BUNDLE/cards\"",
        );
        bundle.program(
            "tools/cmake",
            "echo \"$*\" >>\"$BUNDLE/cmake.calls\"
             case $1 in
                --version) echo 'cmake version 3.25.1' ;;
                --build) mkdir -p \"$2/bin\"; echo a library >\"$2/bin/libggml-cuda.so\" ;;
             esac",
        );
        bundle.program(
            "bin/gpu-check",
            "echo \"$*\" >\"$BUNDLE/check.arguments\"
             echo \"visible=${CUDA_VISIBLE_DEVICES-all}\" >\"$BUNDLE/check.surroundings\"
             echo \"libraries=${LD_LIBRARY_PATH-}\" >>\"$BUNDLE/check.surroundings\"
             echo \"backend=${GGML_BACKEND_PATH-none}\" >>\"$BUNDLE/check.surroundings\"",
        );
        bundle
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let _nothing_starts = PROGRAMS.lock();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn program(&self, name: &str, script: &str) {
        self.write(name, &format!("#!/usr/bin/env bash\n{script}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Removes everything that a build needs. The file is left from an earlier run with a card.
    fn has_only_an_earlier_build(&self) {
        self.write("bin/libggml-cuda.so", "a library");
        for tool in ["nvcc", "nvidia-smi", "cmake", "c++", "ninja"] {
            fs::remove_file(self.path("tools").join(tool)).unwrap();
        }
    }

    /// Runs the script. Returns the exit code and stderr.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let path = format!("{}:{}", self.path("tools").display(), self.path("system").display());
        let mut command = Command::new(found("bash"));
        command
            .arg(self.path("run.sh"))
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("BUNDLE", self.folder.path())
            .envs(self.toolkit.iter().map(|toolkit| ("CUDA_HOME", toolkit)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = {
            let _nothing_is_written = PROGRAMS.lock();
            command.spawn().unwrap()
        };
        let output = started.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let (code, said) = self.run(arguments);
        assert_eq!(code, 0, "{said}");
        said
    }

    /// The calls of cmake, except for calls that ask for cmake's version.
    fn builds(&self) -> Vec<String> {
        let calls = self.read("cmake.calls");
        calls.lines().filter(|call| *call != "--version").map(str::to_owned).collect()
    }

    /// The folders below `results`.
    fn results(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("results")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The path of a program on this machine.
fn found(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("this machine has no {name}"))
}

#[test]
fn the_backend_is_built_for_the_card_once_and_the_results_record_it() {
    let bundle = Bundle::new();
    bundle.succeeds(&["--jobs", "3"]);
    let (source, build) = (bundle.path("cuda"), bundle.path("build/90-nvcc12.4"));
    let (source, build) = (source.display(), build.display());
    let once = [
        format!("-S {source} -B {build} -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90-real"),
        format!("--build {build} --target ggml-cuda --parallel 3"),
    ];
    assert_eq!(bundle.builds(), once);
    fs::remove_file(bundle.path("bin/libggml-cuda.so")).unwrap();
    bundle.succeeds(&[]);
    assert_eq!(bundle.builds(), once);
    assert_eq!(bundle.read("bin/libggml-cuda.so"), "a library\n");
    // A folder of results is never overwritten.
    let names = bundle.results();
    assert!(names[0].ends_with("-nvidia-h200") && names.len() == 2, "{names:?}");
    let record: serde_json::Value =
        serde_json::from_str(&bundle.read(&format!("results/{}/build.json", names[0]))).unwrap();
    let recorded = ["version", "cuda_architectures", "nvcc"].map(|key| record[key].as_str());
    assert_eq!(recorded, ["1", "90-real", "12.4"].map(Some));
    assert!(record["cuda_build_seconds"].is_number() && record["cuda_build_cpu_seconds"].is_number(), "{record}");
    // A different bundle in the same folder causes a new build.
    bundle.write("BUILD.json", "{ \"version\": \"2\" }\n");
    bundle.succeeds(&[]);
    assert_eq!(bundle.builds().len(), 4);
}

#[test]
fn different_cards_share_one_backend_and_build_only_runs_no_check() {
    let bundle = Bundle::new();
    bundle.write("cards", &format!("{H200}\n8.6, NVIDIA GeForce RTX 3090\n{H200}\n"));
    // make is used if ninja is missing.
    fs::rename(bundle.path("tools/ninja"), bundle.path("tools/make")).unwrap();
    let script = bundle.read("tools/nvidia-smi").replace("CUDA Version: 12.4", "CUDA Version: 11.8");
    bundle.write("tools/nvidia-smi", &script);
    let said = bundle.succeeds(&["--build-only"]);
    assert!(said.contains("programs of CUDA 11.8 and older"), "a driver older than the toolkit is noted: {said}");
    let configured = &bundle.builds()[0];
    assert!(configured.ends_with("-DCMAKE_CUDA_ARCHITECTURES=86-real;90-real"), "{configured}");
    assert!(!configured.contains("Ninja"));
    assert!(bundle.path("build/86+90-nvcc12.4/BUILD.json").exists());
    assert_eq!(bundle.builds().len(), 2);
    assert!(!bundle.path("check.arguments").exists());
}

#[test]
fn a_failed_build_gives_its_reason_and_is_tried_again() {
    let bundle = Bundle::new();
    let whole = bundle.read("tools/cmake");
    bundle.program(
        "tools/cmake",
        "if [ \"$1\" = --version ]; then echo 'cmake version 3.25.1'; else echo 'unsupported GNU version'; exit 1; fi",
    );
    let (code, said) = bundle.run(&[]);
    assert_eq!(code, 4);
    assert!(said.contains("unsupported GNU version") && said.contains("build/90-nvcc12.4/build.log"), "{said}");
    bundle.write("tools/cmake", &whole);
    bundle.succeeds(&[]);
}

#[test]
fn options_and_exit_code_are_passed_on_and_the_toolkit_is_the_users() {
    let mut bundle = Bundle::new();
    let check = bundle.read("bin/gpu-check");
    bundle.write("bin/gpu-check", &format!("{check}exit 7\n"));
    let toolkit = bundle.path("toolkit");
    fs::create_dir_all(toolkit.join("bin")).unwrap();
    fs::create_dir_all(toolkit.join("lib64")).unwrap();
    bundle.write("toolkit/lib64/libcudart.so.12", "");
    let nvcc = bundle.read("tools/nvcc").replace("release 12.4", "release 12.2");
    bundle.program("toolkit/bin/nvcc", nvcc.trim_start_matches("#!/usr/bin/env bash\n"));
    bundle.toolkit = Some(toolkit.clone());
    let out = bundle.path("out");
    let (code, said) = bundle.run(&["--small", "--minutes", "2", "bytes", "--out", out.to_str().unwrap(), "cliff"]);
    assert_eq!(code, 7, "{said}");
    let (model, out) = (bundle.path("model/autoplace-demo-q8_0.gguf"), out.display());
    let expected =
        format!("--model {} --build {out}/build.json --out {out} --small --minutes 2 bytes cliff\n", model.display());
    assert_eq!(bundle.read("check.arguments"), expected);
    assert!(bundle.path("build/90-nvcc12.2").exists());
    let libraries = format!("libraries={}", toolkit.join("lib64").display());
    assert!(bundle.read("check.surroundings").contains(&libraries));
}

#[test]
fn without_a_card_nothing_is_built_and_no_card_is_visible() {
    let bundle = Bundle::new();
    bundle.has_only_an_earlier_build();
    bundle.succeeds(&["--cpu", "bytes"]);
    assert!(bundle.read("check.arguments").ends_with("--cpu bytes\n"));
    assert_eq!(bundle.read("check.surroundings"), "visible=\nlibraries=\nbackend=none\n");
    let results = bundle.results();
    assert!(results[0].ends_with("-cpu"), "{results:?}");
    let record = bundle.read(&format!("results/{}/build.json", results[0]));
    assert_eq!(record, bundle.read("BUILD.json"));
}

#[test]
fn the_vulkan_backend_of_the_archive_is_used_without_a_build() {
    let bundle = Bundle::new();
    bundle.has_only_an_earlier_build();
    is_refused(&bundle, &["--vulkan"], 3, "this archive has no Vulkan backend");
    fs::create_dir(bundle.path("vulkan")).unwrap();
    bundle.write("vulkan/libggml-vulkan.so", "a library");
    bundle.succeeds(&["--vulkan", "--small", "bytes"]);
    assert!(bundle.builds().is_empty());
    assert!(bundle.read("check.arguments").ends_with(" --small bytes\n"), "{}", bundle.read("check.arguments"));
    let backend = bundle.path("vulkan/libggml-vulkan.so");
    let surroundings = format!("visible=\nlibraries=\nbackend={}\n", backend.display());
    assert_eq!(bundle.read("check.surroundings"), surroundings);
    let results = bundle.results();
    assert!(results.len() == 1 && results[0].ends_with("-vulkan"), "{results:?}");
    assert_eq!(bundle.read(&format!("results/{}/build.json", results[0])), bundle.read("BUILD.json"));
}

#[test]
fn missing_or_wrong_programs_are_named_before_anything_is_built() {
    // A program is missing, or it behaves differently.
    for (program, script, words) in [
        ("nvidia-smi", None, "no NVIDIA driver"),
        ("nvcc", None, "no nvcc"),
        ("cmake", None, "no cmake"),
        ("c++", None, "no C++ compiler"),
        ("ninja", None, "neither ninja nor make"),
        (
            "nvidia-smi",
            Some("echo 'No devices were found'; exit 6"),
            "no card: nvidia-smi says \"No devices were found\"",
        ),
        ("nvidia-smi", Some("echo '12.0, NVIDIA RTX 5090'"), "compute capability 12.0, only for 75 80 86 90;"),
        ("cmake", Some("echo 'cmake version 3.9.6'"), "cmake is 3.9; install 3.18 or newer"),
    ] {
        if (program, script) == ("nvcc", None) && Path::new("/usr/local/cuda/bin/nvcc").exists() {
            continue;
        }
        let bundle = Bundle::new();
        let tool = format!("tools/{program}");
        match script {
            Some(script) => bundle.program(&tool, script),
            None => fs::remove_file(bundle.path(&tool)).unwrap(),
        }
        is_refused(&bundle, &[], 3, words);
    }
    for (arguments, words) in [
        (&["--jbos", "2"][..], "there is no option --jbos"),
        (&["--jobs", "none"], "--jobs wants a number"),
        (&["--out"], "--out wants a value"),
        (&["bites"], "there is no check bites"),
        (&["--cpu", "--build-only"], "--cpu builds nothing"),
        (&["--vulkan", "--build-only"], "--vulkan builds nothing"),
        (&["--cpu", "--vulkan"], "--cpu uses no card"),
    ] {
        is_refused(&Bundle::new(), arguments, 2, words);
    }
}

/// Asserts the exit code and a single error with these words, and that nothing was built.
#[track_caller]
fn is_refused(bundle: &Bundle, arguments: &[&str], expected: i32, words: &str) {
    let (code, said) = bundle.run(arguments);
    assert_eq!(code, expected, "{said}");
    assert!(said.starts_with("error: ") && said.contains(words), "{said}");
    assert_eq!(said.matches("error:").count(), 1, "{said}");
    assert!(bundle.builds().is_empty());
}
