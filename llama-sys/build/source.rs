//! Step 2: finds llama.cpp's source. The first of these is used: the folder that `LLAMA_CPP_DIR` names; `llama.cpp/` in
//! this crate (only in the published package, into which the release copies it); the package that `vendor/Cargo.lock`
//! pins by checksum. cargo itself fetches and unpacks that package, so that any mirror, proxy or offline configuration
//! of cargo works here too.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the published package that ships all of llama.cpp; only its `llama.cpp/` folder is used.
const PACKAGE: &str = "llama-cpp-sys-4";

/// The root of llama.cpp's source tree.
pub(crate) fn find() -> PathBuf {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));

    if let Some(dir) = folder("LLAMA_CPP_DIR") {
        assert!(
            is_llama_cpp(&dir),
            "LLAMA_CPP_DIR is {}, which does not contain llama.cpp (no include/llama.h)",
            dir.display()
        );
        // A developer may edit this source tree, so changes in it cause a build.
        for part in ["src", "include", "ggml", "CMakeLists.txt"] {
            println!("cargo:rerun-if-changed={}", dir.join(part).display());
        }
        return dir;
    }
    let packaged = here.join("llama.cpp");
    if is_llama_cpp(&packaged) {
        println!("cargo:rerun-if-changed={}", packaged.join("include/llama.h").display());
        return packaged;
    }
    let manifest = here.join("../vendor/Cargo.toml");
    println!("cargo:rerun-if-changed={}", manifest.display());
    println!("cargo:rerun-if-changed={}", manifest.with_file_name("Cargo.lock").display());
    pinned(&manifest)
}

/// The folder that a variable names, if it is set.
pub(crate) fn folder(variable: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={variable}");
    let dir = PathBuf::from(std::env::var_os(variable).filter(|dir| !dir.is_empty())?);
    // A relative path would be wrong, because a build script runs in the folder of its package.
    assert!(dir.is_absolute(), "{variable} is `{}`: it must be an absolute path", dir.display());
    Some(dir)
}

fn is_llama_cpp(dir: &Path) -> bool {
    dir.join("include/llama.h").is_file() && dir.join("ggml/CMakeLists.txt").is_file()
}

/// Asks cargo where it unpacked the pinned package.
fn pinned(manifest: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap_or_else(|e| panic!("cannot run `cargo metadata` for {}: {e}", manifest.display()));
    assert!(
        output.status.success(),
        "cargo could not fetch the package that {} pins:\n{}",
        manifest.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata = String::from_utf8(output.stdout).expect("cargo metadata prints UTF-8");
    let root = unpacked(&metadata).unwrap_or_else(|| panic!("{} pins no {PACKAGE}", manifest.display()));
    assert!(is_llama_cpp(&root), "{PACKAGE} ships no llama.cpp source at {}", root.display());
    root
}

/// The package's `llama.cpp/` folder, from the output of `cargo metadata`. That is JSON without spaces, in which each
/// package begins with its name. serde_json is not used, because llama.cpp's build would have to wait for its
/// compilation.
fn unpacked(metadata: &str) -> Option<PathBuf> {
    let (_, package) = metadata.split_once(&format!(r#"{{"name":"{PACKAGE}","version":""#))?;
    let (_, manifest) = package.split_once(r#""manifest_path":""#)?;
    // The path contains no quotes. On Windows its backslashes are doubled.
    let (manifest, _) = manifest.split_once('"')?;
    Some(Path::new(&manifest.replace(r"\\", r"\")).parent()?.join("llama.cpp"))
}
