//! Step 7: finds the libraries by walking cmake's folder, so that a backend's own helper libraries are found too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::compile::Built;
use crate::target::{Target, feature};

/// The linked libraries, as arguments of a linker.
#[derive(Default)]
pub(crate) struct Linked {
    /// llama.cpp's own libraries, by path, dependents first.
    pub(crate) libraries: Vec<PathBuf>,
    /// System libraries, and their folders.
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
    // Dependents come first: llama uses ggml, ggml (the registry) uses the backends, and all use ggml-base.
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
        match path.file_name().and_then(|file| file.to_str()).filter(|file| *file == format!("{name}.a")) {
            // MinGW's linker looks for `libNAME.a`, but ggml's cmake leaves out `lib` there.
            Some(file) => println!("cargo:rustc-link-lib=static:+verbatim={file}"),
            None => println!("cargo:rustc-link-lib={kind}={name}"),
        }
        linked.libraries.push(path);
    }
    if built.dynamic {
        // Programs that cargo runs find libraries only below cargo's own folders, so links to the real libraries are
        // made there.
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("lib");
        link_files(&built.dir.join("bin"), &out);
        println!("cargo:rustc-link-search=native={}", out.display());
        // The folder of the loadable backends. Programs first look in their own folder (see `Backend::init`).
        println!("cargo:rustc-env=LLAMA_SYS_BACKEND_DIR={}", built.dir.join("bin").display());
        println!("cargo:lib_dir={}", built.dir.join("bin").display());
    }
    let cache = Cache::read(&built.dir);
    // Not every compiler has an OpenMP runtime. Without one, ggml warns and uses its own threads.
    let openmp = cache.value("GGML_OPENMP_ENABLED") == Some("ON");
    println!("cargo:rustc-env=LLAMA_SYS_OPENMP={}", u8::from(openmp));
    // native/wait.cmake sets this variable. OpenMP has its own barrier.
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

/// cmake's cache: the programs and libraries that cmake found.
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

    /// Adds the libraries of the system and of toolkits that ggml's static libraries need. `cc` adds C++'s own library
    /// with the shim.
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

    /// Adds the CUDA runtime and cuBLAS as shared libraries. The static ones require culibos, which many installations
    /// lack.
    fn cuda(&mut self, cache: &Cache) {
        // These are variables of cmake's FindCUDAToolkit.
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

    /// Adds the folder in which cmake found a library. `variable` is the name of the library's path in cmake's cache.
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

/// The name of a library to link: `ggml-cpu` for `libggml-cpu.a`. `None` for loadable backends of a dynamic build,
/// which are opened at run time.
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

/// Makes every file of `from` appear in `to`: by a hard link, or by a copy where links are impossible.
fn link_files(from: &Path, to: &Path) {
    let failed = |e: std::io::Error| panic!("cannot link {} into {}: {e}", from.display(), to.display());
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap_or_else(failed);
    for entry in std::fs::read_dir(from).unwrap_or_else(|e| panic!("cannot read {}: {e}", from.display())).flatten() {
        let target = to.join(entry.file_name());
        // Versioned names are links to one file, so each name gets the content of the target.
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
            // The folder of ggml-vulkan's shader compiler is left out, because that is built for the build machine.
            if path.file_name().is_some_and(|name| name != "CMakeFiles" && name != "vulkan-shaders-gen-prefix") {
                walk(&path, visit);
            }
        } else {
            visit(&path);
        }
    }
}
