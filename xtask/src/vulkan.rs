//! `vulkan`: runs tests and the GPU check with a Vulkan driver that needs no card: Mesa's software device.
//!
//! In: ggml-vulkan's shader compiler (`glslc`), Mesa's driver, and the headers of Vulkan 1.4, which many systems lack.
//! Out: a folder with the headers, and the results of `gpu-check` on the device below `target/vulkan/results`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::setup;
use crate::workspace::{Workspace, output, run};

/// Packages of Debian 13 that work on any system: the path in the archive, and the SHA-256.
const HEADERS: [(&str, &str); 2] = [
    (
        "pool/main/v/vulkan-loader/libvulkan-dev_1.4.309.0-1_amd64.deb",
        "8d329d465e16168afff58b1bd0dd6db46aac2cc3f56054a481b25a04e90b345a",
    ),
    (
        "pool/main/s/spirv-headers/spirv-headers_1.6.1+1.4.309.0-1_all.deb",
        "dc18db866d63680351c40ac6b6bece34cb52da64a7799ce1cc4f16f6bff4d064",
    ),
];

/// The loader's path on Debian.
#[cfg(unix)]
const LOADER: &str = "/usr/lib/x86_64-linux-gnu/libvulkan.so.1";

/// A shader compiler that leaves out ggml's `-O`, because Mesa optimises shaders itself. The script saves a fifth of
/// the time.
#[cfg(unix)]
const GLSLC: &str = r#"#!/bin/sh
for argument; do
    shift
    [ "$argument" = -O ] || set -- "$@" "$argument"
done
exec glslc "$@"
"#;

/// A shader compiler for the demo model, the only model of the tests. It replaces shaders of quantized types other than
/// Q8_0, and shaders of an extension that Mesa lacks, by invalid SPIR-V, which saves more than half of the time. If
/// such a shader is requested, the driver refuses it and ggml prints its name. A shader that is compiled with `-MD`,
/// one of each source, is never replaced, because the compiler then also writes the dependencies of the source.
#[cfg(unix)]
const GLSLC_FOR_TESTS: &str = r#"#!/bin/sh
unset output depends
for argument; do
    shift
    [ "$before" = -o ] && output=$argument
    [ "$argument" = -MD ] && depends=yes
    [ "$argument" = -O ] || set -- "$@" "$argument"
    before=$argument
done
case ${depends-${output##*/}} in
*q[1-6]_* | *fp4* | *_dot2*) echo "not compiled for tests: see xtask/src/vulkan.rs" >"$output" ;;
*) exec glslc "$@" ;;
esac
"#;

/// A launcher of the C++ compiler that turns optimisation off. The backend's host code compiles in 28 s of one core
/// instead of 112 s. Its speed does not matter, because Mesa's device computes for far longer than the host code runs.
#[cfg(unix)]
const LAUNCHER: &str = r#"#!/bin/sh
case $* in
*/ggml-vulkan.dir/*) exec "$@" -O0 ;;
*) exec "$@" ;;
esac
"#;

/// A launcher for tests with small models. It reduces the optimisation of the parts of llama.cpp that are slow to
/// compile and hardly affect the speed of a token. Parts that tests hardly run are not optimised at all. This saves 58
/// of 188 s of one core.
#[cfg(unix)]
const LAUNCHER_FOR_TESTS: &str = r#"#!/bin/sh
case $* in
*/ggml-vulkan.dir/* | */llama-chat.cpp | */llama-grammar.cpp | */llama-quant.cpp | */ggml-backend-meta.cpp)
    exec "$@" -O0 ;;
*/llama.dir/Unity/* | */llama-model*.cpp | */llama-memory-*.cpp | */llama-kv-cache-*.cpp) exec "$@" -O1 ;;
*) exec "$@" ;;
esac
"#;

/// ggml skips devices that compute on the CPU unless they are named.
pub(crate) const DEVICE: (&str, &str) = ("GGML_VK_VISIBLE_DEVICES", "0");

/// Runs the GPU check, without a limit of time.
pub(crate) fn vulkan(workspace: &mut Workspace, checks: &[String]) -> Result<()> {
    setup::native()?;
    workspace.vulkan = Some(for_mesa(workspace, "mesa", [GLSLC, LAUNCHER])?);
    let build = ["--release", "--locked", "--bin=gpu-check", "--package=autoplace-gpu-check"];
    run(&mut workspace.compile("build", &build))?;
    let results = workspace.target.join("vulkan/results");
    let mut check = Command::new(workspace.target.join("release/gpu-check"));
    check.args(["--small", "--minutes=0", "--cases=4"]);
    check.arg("--model=examples/model/autoplace-demo-q8_0.gguf");
    check.arg("--out").arg(results).args(checks).env(DEVICE.0, DEVICE.1);
    run(check.current_dir(&workspace.root))
}

/// The kit that works only with Mesa's driver and the demo model.
pub(crate) fn for_tests(workspace: &Workspace) -> Result<PathBuf> {
    for_mesa(workspace, "tests", [GLSLC_FOR_TESTS, LAUNCHER_FOR_TESTS])
}

/// The kit for Mesa's driver: Vulkan's SDK with this shader compiler, and with this launcher of the C++ compiler.
#[cfg_attr(not(unix), allow(unused_variables))]
fn for_mesa(workspace: &Workspace, name: &str, [compiler, launcher]: [&str; 2]) -> Result<PathBuf> {
    let sdk = sdk(workspace)?;
    let mesa = workspace.target.join("vulkan").join(name);
    // FindVulkan of CMake looks in this folder first.
    #[cfg(unix)]
    let programs = [(mesa.join("bin/glslc"), compiler), (mesa.join("bin/launch-c++"), launcher)];
    #[cfg(unix)]
    if programs.iter().any(|(path, text)| fs::read_to_string(path).ok().as_deref() != Some(text)) {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        // An interrupted run may have left the folder.
        let _ = fs::remove_dir_all(&mesa);
        fs::create_dir_all(mesa.join("bin"))?;
        for part in ["include", "lib", "share"] {
            symlink(sdk.join(part), mesa.join(part))?;
        }
        for (path, text) in programs {
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(mesa)
}

/// Installs the driver, and puts the headers in a folder with the layout of Vulkan's SDK.
pub(crate) fn sdk(workspace: &Workspace) -> Result<PathBuf> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "Vulkan's driver and headers are taken from Debian's packages for x86-64"
    );
    setup::vulkan()?;
    let folder = workspace.target.join("vulkan");
    let sdk = folder.join("sdk/usr");
    let loader = sdk.join("lib/libvulkan.so");
    if loader.exists() {
        return Ok(sdk);
    }
    fs::create_dir_all(&folder)?;
    let listed = ["indextargets", "--format", "$(REPO_URI)"];
    let archives = output(Command::new("apt-get").args(listed))?;
    for (path, hash) in HEADERS {
        fetch(&archives, path, hash, &folder)?;
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(LOADER, &loader)?;
    Ok(sdk)
}

/// Unpacks a package from the first of apt's archives that has it.
fn fetch(archives: &str, path: &str, hash: &str, folder: &Path) -> Result<()> {
    let package = folder.join(path.rsplit('/').next().unwrap_or(path));
    let mut archives = archives.lines().filter(|line| !line.contains("security"));
    let fetched = archives.any(|archive| {
        let mut fetch = Command::new("/usr/lib/apt/apt-helper");
        fetch.arg("download-file").arg(format!("{archive}{path}"));
        run(fetch.arg(&package).arg(format!("SHA256:{hash}"))).is_ok()
    });
    if !fetched {
        bail!("{path} is in no archive that apt knows: pin what Debian 13 has now (xtask/src/vulkan.rs)");
    }
    run(Command::new("dpkg").arg("-x").arg(&package).arg(folder.join("sdk")))
}
