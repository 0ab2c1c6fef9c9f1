//! Step 7: the libraries, found by walking cmake's folder, so that a backend's own helper libraries are
//! never forgotten.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::compile::Built;
use crate::{Target, feature};

/// What is linked, as a linker's arguments.
#[derive(Default)]
pub(crate) struct Linked {
    /// llama.cpp's own libraries, by path, dependents first.
    pub(crate) libraries: Vec<PathBuf>,
    /// The system's, and where they are.
    pub(crate) system: Vec<String>,
}

/// Prints cargo's link lines.
pub(crate) fn libraries(target: &Target, built: &Built) -> Linked {
    let mut linked = Linked::default();
    let kind = if built.dynamic { "dylib" } else { "static" };
    let mut found = BTreeSet::new();
    walk(&built.dir, &mut |path| {
        if let Some(name) = library_name(path, target, built.dynamic) {
            found.insert((name, path.to_owned()));
        }
    });
    for dir in found.iter().filter_map(|(_, path)| path.parent()).collect::<BTreeSet<&Path>>() {
        println!("cargo:rustc-link-search=native={}", dir.display());
    }
    // Dependents first: llama uses ggml, ggml (the registry) uses the backends, everything uses ggml-base.
    let rank = |name: &str| match name {
        "llama" => 0,
        "ggml" => 1,
        "ggml-base" => 3,
        _ => 2,
    };
    let mut found: Vec<(String, PathBuf)> = found.into_iter().collect();
    found.sort_by_key(|(name, _)| (rank(name), name.clone()));
    found.dedup_by(|(a, _), (b, _)| a == b);
    for required in ["llama", "ggml", "ggml-base"] {
        let is_there = found.iter().any(|(name, _)| name == required);
        assert!(is_there, "cmake built no {required} library below {}", built.dir.display());
    }
    for (name, path) in found {
        match path.file_name().and_then(|it| it.to_str()).filter(|it| *it == format!("{name}.a")) {
            // MinGW's linker looks for `libNAME.a`, and ggml's cmake leaves `lib` out there.
            Some(file) => println!("cargo:rustc-link-lib=static:+verbatim={file}"),
            None => println!("cargo:rustc-link-lib={kind}={name}"),
        }
        linked.libraries.push(path);
    }
    if built.dynamic {
        // cargo lets programs that it runs find libraries below its own folders only: these are links to the real ones.
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("lib");
        link_files(&built.dir.join("bin"), &out);
        println!("cargo:rustc-link-search=native={}", out.display());
        // Loadable backends lie here; programs look beside themselves first (see `Backend::init`).
        println!("cargo:rustc-env=LLAMA_SYS_BACKEND_DIR={}", built.dir.join("bin").display());
        println!("cargo:lib_dir={}", built.dir.join("bin").display());
    }
    let cache = Cache::read(&built.dir);
    // Compilers differ in which runtime they bring, and some bring none: then ggml falls back to its own threads, with
    // a warning.
    let openmp = cache.value("GGML_OPENMP_ENABLED") == Some("ON");
    println!("cargo:rustc-env=LLAMA_SYS_OPENMP={}", u8::from(openmp));
    // Set by native/wait.cmake. OpenMP has a barrier of its own.
    let threads_sleep = !openmp && cache.value("AUTOPLACE_WAIT") == Some("ON");
    println!("cargo:rustc-env=LLAMA_SYS_THREADS_SLEEP={}", u8::from(threads_sleep));
    if !openmp && !threads_sleep {
        println!(
            "cargo:warning=this llama.cpp's threads spin where they wait for each other, and are slow beside other \
             programs: cmake is older than 3.19, or ggml-cpu.c is not the one that llama-sys/native/wait.cmake knows"
        );
    }
    if !built.dynamic {
        linked.system_libraries(target, &cache);
        // MSVC's compiler names its OpenMP library in the object files.
        if openmp && !target.is_msvc() {
            linked.openmp(&cache);
        }
    }
    linked
}

/// What cmake found, by its own account.
struct Cache(String);

impl Cache {
    fn read(build: &Path) -> Self {
        Self(std::fs::read_to_string(build.join("CMakeCache.txt")).unwrap_or_default())
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.split(':').next() == Some(name)).then_some(value)
        })
    }
}

impl Linked {
    fn openmp(&mut self, cache: &Cache) {
        let names = cache.value("OpenMP_CXX_LIB_NAMES").unwrap_or_default();
        for name in names.split(';').filter(|name| !name.is_empty()) {
            self.search_beside(cache, &format!("OpenMP_{name}_LIBRARY"));
            self.link(&[name]);
        }
    }

    /// What ggml's static libraries need from the system and from the toolkits. C++'s own library `cc` names, with the
    /// shim.
    fn system_libraries(&mut self, target: &Target, cache: &Cache) {
        match target.os.as_str() {
            "linux" if target.env == "gnu" || target.env == "musl" => {
                self.link(&["m", "pthread", "dl"]);
            }
            "macos" | "ios" => self.link(&["framework=Foundation", "framework=Accelerate"]),
            "windows" => self.link(&["advapi32"]),
            "android" => self.link(&["m", "dl"]),
            _ => {}
        }
        if feature("metal") && target.is_apple() {
            self.link(&["framework=Metal", "framework=MetalKit"]);
        }
        if feature("vulkan") {
            println!("cargo:rerun-if-env-changed=VULKAN_SDK");
            if let Some(sdk) = std::env::var_os("VULKAN_SDK") {
                let lib = if target.os == "windows" { "Lib" } else { "lib" };
                self.search(&Path::new(&sdk).join(lib));
            }
            self.link(&[if target.os == "windows" { "vulkan-1" } else { "vulkan" }]);
        }
        if feature("cuda") {
            self.cuda(cache);
        }
        if feature("hip") {
            println!("cargo:rerun-if-env-changed=ROCM_PATH");
            let rocm = std::env::var("ROCM_PATH").unwrap_or_else(|_| "/opt/rocm".into());
            self.search(&Path::new(&rocm).join("lib"));
            self.link(&["amdhip64", "rocblas", "hipblas"]);
        }
    }

    /// The CUDA runtime and cuBLAS as shared libraries: the static ones pull in culibos, which many installations lack.
    fn cuda(&mut self, cache: &Cache) {
        // Of cmake's FindCUDAToolkit.
        for variable in ["CUDA_CUDART", "CUDA_cublas_LIBRARY", "CUDA_cuda_driver_LIBRARY"] {
            self.search_beside(cache, variable);
        }
        self.link(&["cudart", "cublas", "cublasLt", "cuda"]);
    }

    fn link(&mut self, libraries: &[&str]) {
        for library in libraries {
            self.system.push(format!("-l{library}"));
            println!("cargo:rustc-link-lib={library}");
        }
    }

    /// Where cmake found a library, by the variable of its cache.
    fn search_beside(&mut self, cache: &Cache, variable: &str) {
        if let Some(dir) = cache.value(variable).and_then(|library| Path::new(library).parent()) {
            self.search(dir);
        }
    }

    fn search(&mut self, dir: &Path) {
        if dir.is_dir() {
            self.system.push(format!("-L{}", dir.display()));
            println!("cargo:rustc-link-search=native={}", dir.display());
        }
    }
}

/// `libggml-cpu.a` -> `ggml-cpu`; loadable backends of a dynamic build are opened at run time and never linked.
fn library_name(path: &Path, target: &Target, dynamic: bool) -> Option<String> {
    let (prefix, suffix) = match (target.os.as_str(), target.is_msvc(), dynamic) {
        ("windows", true, _) => ("", ".lib"),
        ("windows", false, false) => ("", ".a"),
        ("windows", false, true) => ("", ".dll.a"),
        ("macos" | "ios", _, true) => ("lib", ".dylib"),
        (_, _, true) => ("lib", ".so"),
        (_, _, false) => ("lib", ".a"),
    };
    let file = path.file_name()?.to_str()?;
    let name = file.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let ours = name == "llama" || name == "ggml" || name.starts_with("ggml-");
    let linkable = !dynamic || matches!(name, "llama" | "ggml" | "ggml-base");
    (ours && linkable).then(|| name.to_owned())
}

/// Makes every file of `from` appear in `to`: by hard link, or by copy where that cannot be.
fn link_files(from: &Path, to: &Path) {
    let failed = |e: std::io::Error| panic!("cannot link {} into {}: {e}", from.display(), to.display());
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap_or_else(failed);
    for entry in std::fs::read_dir(from).unwrap_or_else(|e| panic!("cannot read {}: {e}", from.display())).flatten() {
        let target = to.join(entry.file_name());
        // Versioned names are links to one file; what they lead to is what is wanted under each name.
        let source = entry.path().canonicalize().unwrap_or_else(|_| entry.path());
        std::fs::hard_link(&source, &target)
            .or_else(|_| std::fs::copy(&source, &target).map(drop))
            .unwrap_or_else(failed);
    }
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            // The shader compiler of ggml-vulkan is a build of its own, for the build machine.
            if path.file_name().is_some_and(|name| name != "CMakeFiles" && name != "vulkan-shaders-gen-prefix") {
                walk(&path, visit);
            }
        } else {
            visit(&path);
        }
    }
}
