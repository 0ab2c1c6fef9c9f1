//! `cuda-check`: compiles the CUDA backend of the GPU check's archive, on a machine without a card and without a
//! toolkit.
//!
//! In: the pinned llama.cpp, and NVIDIA's toolkit from Python packages. Out: objects of the kernels that take most of a
//! model's time, made by the archive's own build (`gpu-check/bundle/cuda`). With `--all`: the whole library, the
//! libraries that it links to, and the CPU time of the build. Nothing is run, because that needs a card. `runtime
//! --cuda` gets its library from this module.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Workspace, output, run};
use crate::{python, setup, source, tree};

pub(crate) const REQUIREMENTS: &str = "gpu-check/cuda/requirements.txt";
const BUILD: &str = "gpu-check/bundle/cuda";
const GLIBC: &str = "gpu-check/cuda/glibc.c";

/// Hopper, with tensor cores and asynchronous copies. It is the newest architecture whose name has the plain form
/// `XX-real`; only Blackwell's code path is newer.
const ARCHITECTURE: &str = "90-real";

/// ggml's own default with CUDA 13, which covers every card since Turing. The driver compiles code for virtual
/// architectures on first use.
const EVERY: &str = "75-virtual;80-virtual;86-real;89-real;90-virtual;120a-real;121a-real";

/// The variable with the architectures. llama-sys's build also reads it.
const ARCHITECTURES: &str = "CMAKE_CUDA_ARCHITECTURES";

/// ggml-cuda's folder, in llama.cpp and in the build.
const BACKEND: &str = "ggml/src/ggml-cuda";

/// One source for each kind of kernel in the path of a token. If a kernel has several template instances, the list has
/// the most common one.
const REPRESENTATIVE: &[&str] = &[
    // Devices, virtual memory pools (through the driver's interface), graphs and cuBLAS.
    "ggml-cuda.cu",
    // Products with quantised matrices, by vectors and by tiles.
    "mmvq.cu",
    "mmq.cu",
    "template-instances/mmq-instance-q4_k.cu",
    // Flash attention: the selection of kernels, a kernel with tensor cores, and a kernel with vectors.
    "fattn.cu",
    "template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_4.cu",
    "template-instances/fattn-vec-instance-f16-f16.cu",
    "norm.cu",
    "rope.cu",
];

/// Compiles the representative sources or, with `all`, everything.
pub(crate) fn cuda_check(workspace: &Workspace, all: bool) -> Result<()> {
    let architectures = env::var(ARCHITECTURES).unwrap_or_else(|_| ARCHITECTURE.into());
    let build = configure(workspace, &architectures, "", "")?;
    let objects = format!("{BACKEND}/CMakeFiles/ggml-cuda.dir");
    let (begin, since, before) = (Instant::now(), SystemTime::now(), cpu_of_children()?);
    if all {
        make(&build, ["ggml-cuda".to_owned()])?;
    } else {
        make(&build, REPRESENTATIVE.iter().map(|source| format!("{objects}/{source}.o")))?;
    }
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_of_children()? - before);
    if all {
        // In this build, the run path contains the folder of the toolkit.
        check_library(&build.join("bin"), "[$ORIGIN:")?;
    }
    let made = compiled(&build.join(objects), since)?;
    println!(
        "\nCompiled now for {architectures}: {} of {} objects, in {seconds:.0} s and {cpu:.0} s of CPU time.",
        made.new, made.all
    );
    if all && made.new == made.all {
        println!("16 cores need {:.0} s at least.", cpu / 16.0);
    }
    Ok(())
}

/// The CUDA backend for a runtime. The backend supports every card, unless the variable lists architectures. It is used
/// from the folder of the other libraries. Its C++ library is linked statically, and requires nothing that an older
/// glibc lacks.
pub(crate) fn library(workspace: &Workspace) -> Result<PathBuf> {
    let architectures = env::var(ARCHITECTURES).unwrap_or_else(|_| EVERY.into());
    println!("cuda: llama.cpp's kernels for {architectures}: most of an hour of one core for each kind of card");
    let object = workspace.target.join("cuda-check/glibc.o");
    fs::create_dir_all(workspace.target.join("cuda-check"))?;
    run(Command::new(setup::cxx()?)
        .args(["-O2", "-fPIC", "-fvisibility=hidden", "-x", "c", "-c"])
        .arg(workspace.root.join(GLIBC))
        .arg("-o")
        .arg(&object))?;
    let wrapped = ["once", "key_create", "key_delete", "getspecific", "setspecific"];
    let wrapped = wrapped.map(|name| format!(" -Wl,--wrap=pthread_{name}")).concat();
    // The C++ library stays private, because the process may have another one.
    let linker = format!("-static-libstdc++ -Wl,--exclude-libs,libstdc++.a -s{wrapped} {}", object.display());
    let build = configure(workspace, &architectures, "$ORIGIN", &linker)?;
    make(&build, ["ggml-cuda".to_owned()])?;
    check_library(&build.join("bin"), "[$ORIGIN]")?;
    Ok(build.join("bin/libggml-cuda.so"))
}

/// Configures the build for these architectures, with this run path and these linker flags. Returns the build's folder.
/// The builds for a check and for a runtime differ only in the last step, linking.
fn configure(workspace: &Workspace, architectures: &str, run_path: &str, linker: &str) -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "CUDA's toolkit is pinned as packages for Linux on x86-64; this is {} on {}",
            env::consts::OS,
            env::consts::ARCH
        );
    }
    setup::native()?;
    let llama_cpp = source::find(workspace)?;
    let python = python::environment(workspace, REQUIREMENTS)?;
    let toolkit = toolkit(&python)?;
    let build = workspace.target.join("cuda-check").join(architectures.replace(';', "+"));
    let define = |name: &str, value: &Path| format!("-D{name}={}", value.display());
    run(Command::new(cmake())
        .args(["-G", "Ninja", "-S"])
        .arg(workspace.root.join(BUILD))
        .arg("-B")
        .arg(&build)
        .args([
            "-DCMAKE_BUILD_TYPE=Release".to_owned(),
            format!("-D{ARCHITECTURES}={architectures}"),
            format!("-DCMAKE_INSTALL_RPATH={run_path}"),
            format!("-DCMAKE_MODULE_LINKER_FLAGS={linker}"),
            define("CMAKE_MAKE_PROGRAM", &python.with_file_name("ninja")),
            define("CUDAToolkit_ROOT", &toolkit),
            define("LLAMA_CPP", &llama_cpp),
        ])
        // The toolkit of this machine, if there is one, is not the pinned toolkit.
        .env_remove("CUDACXX"))?;
    Ok(build)
}

fn cmake() -> OsString {
    env::var_os("CMAKE").unwrap_or_else(|| "cmake".into())
}

fn make(build: &Path, targets: impl IntoIterator<Item = String>) -> Result<()> {
    let mut make = Command::new(cmake());
    make.arg("--build").arg(build).arg("--target").args(targets);
    if env::var_os("CMAKE_BUILD_PARALLEL_LEVEL").is_none() {
        let cores = thread::available_parallelism()?;
        make.env("CMAKE_BUILD_PARALLEL_LEVEL", cores.to_string());
    }
    run(&mut make)
}

/// The toolkit's folder in Python's environment, to which files that cmake and nvcc need have been added.
fn toolkit(python: &Path) -> Result<PathBuf> {
    let libraries =
        output(Command::new(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;
    // The packages of CUDA 13 share this folder, which has the layout of a toolkit.
    let toolkit = Path::new(libraries.trim()).join("nvidia/cu13");
    complete(&toolkit)?;
    stand_in(&toolkit)?;
    Ok(toolkit)
}

/// Adds the parts of an installed toolkit that the packages lack: executable bits (some installers drop them), the
/// folder `lib64`, and the names of libraries that linkers search for.
fn complete(toolkit: &Path) -> Result<()> {
    run(Command::new("chmod").args(["-R", "a+x", "bin", "nvvm/bin"]).current_dir(toolkit))?;
    link("lib", &toolkit.join("lib64"))?;
    for library in ["cudart", "cublas"] {
        let name = format!("lib{library}.so");
        let folder = toolkit.join("lib");
        let versioned = tree::files(&folder)?
            .into_iter()
            .filter_map(|path| path.to_str().map(str::to_owned))
            .find(|file| file.starts_with(&format!("{name}.")))
            .with_context(|| format!("the packages of {REQUIREMENTS} contain no {name}.*"))?;
        link(&versioned, &folder.join(name))?;
    }
    fs::create_dir_all(toolkit.join("lib/stubs"))?;
    Ok(())
}

/// Creates a link at `path` to a name in the same folder.
fn link(name: &str, path: &Path) -> Result<()> {
    if fs::read_link(path).is_ok_and(|old| old == Path::new(name)) {
        return Ok(());
    }
    run(Command::new("ln").arg("-sn").arg(name).arg(path))
}

/// Makes a libcuda for linking, like the stub of an installed toolkit. It is needed because the real library comes with
/// the driver, and no package contains a stub. Our stub defines every function of the header, because most linkers
/// record a library only if it defines a needed symbol.
fn stand_in(toolkit: &Path) -> Result<()> {
    let header = toolkit.join("include/cuda.h");
    let header = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
    let stubs = toolkit.join("lib/stubs");
    let (code, library) = (stubs.join("libcuda.c"), stubs.join("libcuda.so"));
    tree::write(&code, stub(&header).as_bytes())?;
    run(Command::new(setup::cxx()?)
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c"])
        .arg(code)
        .arg("-o")
        .arg(library))
}

/// C code that defines the functions of the driver. Each returns the code of NVIDIA's own stubs,
/// `CUDA_ERROR_STUB_LIBRARY` of cuda.h.
fn stub(header: &str) -> String {
    // The pattern matches only the driver's functions and their versions. Types begin with `CU`, and the runtime's
    // functions with `cuda`.
    let is_function =
        |word: &&str| word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let names: BTreeSet<&str> =
        header.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).filter(is_function).collect();
    names.into_iter().map(|name| format!("int {name}(void) {{ return 34; }}\n")).collect()
}

/// Checks that programs of another build can use the library. It must refer to the driver, the toolkit and ggml-base by
/// the names that these have on the user's machine, and its run path must begin with the library's own folder.
fn check_library(folder: &Path, run_path: &str) -> Result<()> {
    let library = folder.join("libggml-cuda.so");
    let dynamic = output(Command::new("readelf").arg("-dW").arg(&library))?;
    for needed in ["libggml-base.so.", "libcuda.so.1", "libcudart.so.", "libcublas.so."] {
        ensure!(
            dynamic.contains(&format!("Shared library: [{needed}")),
            "{} does not link to {needed}:\n{dynamic}",
            library.display()
        );
    }
    ensure!(
        dynamic.contains(&format!("path: {run_path}")) && !dynamic.contains("/stubs"),
        "{} must search its own folder first, and never the folder of stubs:\n{dynamic}",
        library.display()
    );
    let symbols = |kind: &str, file: &Path| {
        let mut list = Command::new("nm");
        output(list.args(["-DP", kind]).arg(file))
    };
    let base = symbols("--defined-only", &folder.join("libggml-base.so"))?;
    let lacking = symbols("--undefined-only", &library)?;
    let foreign = names_of_cpp(&lacking, &base);
    ensure!(
        foreign.is_empty(),
        "{} takes C++ from libggml-base.so, which another compiler with another standard library may have made: {foreign:?}",
        library.display()
    );
    Ok(())
}

/// The C++ symbols that one library lacks and another one defines. Each line begins with a name, which may have a
/// version.
fn names_of_cpp<'a>(lacking: &'a str, defined: &'a str) -> Vec<&'a str> {
    let names = |list: &'a str| -> BTreeSet<&'a str> {
        list.lines().filter_map(|line| line.split([' ', '@']).next()).filter(|name| name.starts_with("_Z")).collect()
    };
    names(lacking).intersection(&names(defined)).copied().collect()
}

/// The number of objects below a folder, and how many of them were written since a given time.
struct Compiled {
    new: usize,
    all: usize,
}

fn compiled(folder: &Path, since: SystemTime) -> Result<Compiled> {
    let mut counted = Compiled { new: 0, all: 0 };
    for file in tree::files(folder)? {
        if file.extension().is_some_and(|name| name == "o") {
            counted.all += 1;
            counted.new += usize::from(fs::metadata(folder.join(file))?.modified()? >= since);
        }
    }
    Ok(counted)
}

/// CPU seconds of the ended children of this process and of their descendants: `cutime` and `cstime` of proc(5).
fn cpu_of_children() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    children(&stat).context("/proc/self/stat has no times of children")
}

fn children(stat: &str) -> Option<f64> {
    /// Linux on x86-64 always reports ticks at this rate (`USER_HZ`), independently of the kernel's own clock.
    const TICKS_PER_SECOND: f64 = 100.0;
    // The program's name is in brackets and may contain any characters. The third field follows it, and the wanted
    // fields are the 16th and the 17th.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(13);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_representative_source_is_in_the_pinned_llama_cpp() {
        let llama_cpp = source::find(&Workspace::find().unwrap()).unwrap();
        for name in REPRESENTATIVE {
            let path = llama_cpp.join(BACKEND).join(name);
            assert!(path.is_file(), "{} is gone", path.display());
        }
    }

    /// The bundle builds ggml directly, without the CMakeLists.txt of llama.cpp.
    #[test]
    fn the_bundle_sets_every_default_by_which_llama_cpp_overrides_ggmls() {
        let workspace = Workspace::find().unwrap();
        let theirs = source::find(&workspace).unwrap().join("CMakeLists.txt");
        let theirs = fs::read_to_string(theirs).unwrap();
        let ours = workspace.root.join(BUILD).join("CMakeLists.txt");
        let ours = fs::read_to_string(ours).unwrap();
        let defaults: Vec<&str> = theirs
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("set(GGML_") && line.contains("_DEFAULT "))
            .collect();
        assert!(!defaults.is_empty(), "llama.cpp sets them in another way");
        for line in defaults {
            assert!(ours.contains(line), "the bundle lacks `{line}`");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_toolkit_of_packages_gets_the_parts_of_an_installed_one() {
        use std::os::unix::fs::PermissionsExt;

        let toolkit = env::temp_dir().join(format!("autoplace-toolkit-{}", std::process::id()));
        let _ = fs::remove_dir_all(&toolkit);
        for path in ["bin/nvcc", "nvvm/bin/cicc", "lib/libcudart.so.13", "lib/libcublas.so.13", "lib/libcublasLt.so.13"]
        {
            tree::write(&toolkit.join(path), path.as_bytes()).unwrap();
        }
        complete(&toolkit).unwrap();
        // A second call changes nothing.
        complete(&toolkit).unwrap();
        for program in ["bin/nvcc", "nvvm/bin/cicc"] {
            let mode = fs::metadata(toolkit.join(program)).unwrap().permissions();
            assert_eq!(mode.mode() & 0o111, 0o111, "{program}");
        }
        for (link, content) in
            [("lib64/libcudart.so", "lib/libcudart.so.13"), ("lib/libcublas.so", "lib/libcublas.so.13")]
        {
            assert_eq!(fs::read_to_string(toolkit.join(link)).unwrap(), content);
        }
        fs::remove_dir_all(toolkit).unwrap();
    }

    #[test]
    fn a_stub_has_the_functions_of_the_drivers_header() {
        let header = "typedef int CUresult; /* see cudaMalloc */\n#define cuMemFree cuMemFree_v2\n\
             CUresult CUDAAPI cuMemFree(CUdeviceptr dptr, cuuint64_t flags);";
        assert_eq!(stub(header), "int cuMemFree(void) { return 34; }\nint cuMemFree_v2(void) { return 34; }\n");
    }

    #[test]
    fn only_c_functions_may_cross_from_ggml_base() {
        let base = "ggml_backend_free T 10 4\n_ZN4gguf4readEv T 20 4\n";
        let lacking = "_ZdlPv@GLIBCXX_3.4 U\nggml_backend_free U\n";
        assert!(names_of_cpp(lacking, base).is_empty());
        let lacking = "_ZN4gguf4readEv U\nggml_backend_free U\n";
        assert_eq!(names_of_cpp(lacking, base), ["_ZN4gguf4readEv"]);
    }

    #[test]
    fn the_times_of_children_are_read_after_any_program_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 0 10 20 30 40 111 222 250 50 20 0 1 0 99";
        assert_eq!(children(stat), Some(3.0));
    }
}
