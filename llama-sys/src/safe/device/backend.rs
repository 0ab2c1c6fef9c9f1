//! The initialisation of llama.cpp, which happens once per process.

use std::path::Path;
use std::sync::OnceLock;

use super::{Device, registry};
use crate::raw;
#[cfg(feature = "prebuilt-runtime")]
use crate::safe::build::runtime;
use crate::safe::build::{cpu_has, missing, required};
use crate::safe::call::text::{owned, path_to_c};
use crate::safe::call::{self, Error, log};

/// Proof that llama.cpp is initialised. Calls that need llama.cpp run [`Backend::init`] themselves. An application
/// needs a `Backend` only to list devices, or to add devices of another machine.
#[derive(Debug, Clone, Copy)]
pub struct Backend(());

static INIT: OnceLock<Result<Backend, Error>> = OnceLock::new();

impl Backend {
    /// Initialises llama.cpp once: checks the CPU and routes the log into `tracing`. With `dynamic-backends` it loads
    /// the backends from the program's folder. For a program in cargo's target folder, it loads them from the folder
    /// where they were built. With `prebuilt-runtime` it opens the runtime first. Later calls cost nothing.
    ///
    /// During this call ggml sets environment variables (`KMP_BLOCKTIME`, and `AGX_RELAX_CDM_CTXSTORE_TIMEOUT` for
    /// Metal) with C's `setenv`. So call `init` before you start threads that read the environment through C.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedCpu`] when the native code would hit an illegal instruction on this CPU; [`Error::Call`]
    /// when a backend fails to start. With `prebuilt-runtime`, `Error::Runtime` if there is no runtime to open.
    pub fn init() -> Result<Self, Error> {
        // A failed attempt is not remembered, because the application may install a runtime before the next call.
        #[cfg(feature = "prebuilt-runtime")]
        runtime::open()?;
        INIT.get_or_init(|| {
            let missing = missing(required(), cpu_has);
            if !missing.is_empty() {
                return Err(Error::UnsupportedCpu { required: required().map(str::to_owned).collect(), missing });
            }
            log::install();
            // SAFETY: called once, before any other function of llama.cpp; neither has preconditions.
            call::checked(|error| unsafe {
                raw::shim_install_abort_guard();
                raw::shim_init(error)
            })
            .map_err(|failure| Error::Call { what: "starting the backends", failure })?;
            load_dynamic_backends();
            Ok(Self(()))
        })
        .clone()
    }

    /// Every device that ggml knows, including the CPU, in the order of ggml's list.
    pub fn devices(self) -> Vec<Device> {
        let _unchanged = registry::reading();
        // SAFETY: the registry is initialised, and does not change meanwhile.
        let count = unsafe { raw::ggml_backend_dev_count() };
        // SAFETY: the indices are below the count.
        let device = |index| Device::from_raw(unsafe { raw::ggml_backend_dev_get(index) });
        (0..count).filter_map(device).collect()
    }

    /// Names of the registered backends. Backends without a device are included, such as `CUDA` in a CUDA build on a
    /// machine without a card.
    pub fn names(self) -> Vec<String> {
        let _unchanged = registry::reading();
        // SAFETY: the registry is initialised, and does not change meanwhile.
        let count = unsafe { raw::ggml_backend_reg_count() };
        // SAFETY: the indices are below the count; a registered backend has a name.
        let name = |index| unsafe { owned(raw::ggml_backend_reg_name(raw::ggml_backend_reg_get(index))) };
        (0..count).map(name).collect()
    }
}

/// Reasons why devices may be missing: better runtimes that could not be used, and backends of the open runtime that
/// ggml could not load.
#[cfg(feature = "prebuilt-runtime")]
pub fn shortcomings() -> Vec<String> {
    let Some(choice) = runtime::opened() else { return Vec::new() };
    let there = Backend::init().map(Backend::names).unwrap_or_default();
    let missing = choice.set.manifest.backends.iter().filter(|name| !there.contains(name));
    let missing = missing.map(|name| format!("ggml could not load the runtime's backend {name}; its log says why"));
    choice.passed_over.iter().map(ToString::to_string).chain(missing).collect()
}

/// Loads the backends. If backends are loadable, none is registered when the process starts, not even the CPU's.
#[cfg(feature = "prebuilt-runtime")]
fn load_dynamic_backends() {
    if let Some(choice) = runtime::opened()
        && choice.set.manifest.loadable
    {
        load_from([&*choice.set.folder]);
    }
}

/// Loads the backends. If backends are loadable, none is registered when the process starts, not even the CPU's.
#[cfg(not(feature = "prebuilt-runtime"))]
fn load_dynamic_backends() {
    let Some(built) = option_env!("LLAMA_SYS_BACKEND_DIR") else {
        return;
    };
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    load_from(backend_folders(&program, Path::new(built)));
}

/// Loads the backends of the first folder that contains any.
fn load_from<'a>(folders: impl IntoIterator<Item = &'a Path>) {
    for dir in folders {
        // SAFETY: the registry is initialised, and this call only looks for a CPU device in it.
        let cpu = unsafe { raw::ggml_backend_dev_by_type(raw::GGML_BACKEND_DEVICE_TYPE_CPU) };
        if !cpu.is_null() || !dir.is_dir() {
            continue;
        }
        let Ok(text) = path_to_c(dir) else { continue };
        // SAFETY: a NUL-terminated path and a valid error slot. A folder without backends is not an error.
        if let Err(failure) = call::checked(|error| unsafe {
            raw::shim_backend_load_all_from(text.as_ptr(), error);
        }) {
            tracing::warn!(target: "ggml", "cannot load the backends in {}: {failure}", dir.display());
        }
    }
}

/// The folders to search for backends: first the program's folder, then the build's folder if the program lies in the
/// same target folder. A program elsewhere does not search the build's folder. On another machine, anyone may have
/// created a folder of that name, and its libraries would run in this process.
#[cfg(not(feature = "prebuilt-runtime"))]
fn backend_folders<'a>(program: &'a Path, built: &'a Path) -> Vec<&'a Path> {
    // An example of this folder: target/debug/build/autoplace-llama-sys-0123456789abcdef/out
    let profile = Path::new(env!("OUT_DIR")).ancestors().nth(3);
    let profile = profile.and_then(|folder| folder.canonicalize().ok());
    let is_here = profile.is_some_and(|folder| program.starts_with(folder));
    program.parent().into_iter().chain(is_here.then_some(built)).collect()
}

#[cfg(all(test, not(feature = "prebuilt-runtime")))]
mod tests {
    use super::*;

    #[test]
    fn a_program_elsewhere_loads_nothing_from_the_folder_of_its_build() {
        let built = Path::new("/somebodys/bin");
        let here = std::env::current_exe().unwrap();
        assert_eq!(backend_folders(&here, built), [here.parent().unwrap(), built]);
        let installed = Path::new("/usr/bin/app");
        assert_eq!(backend_folders(installed, built), [Path::new("/usr/bin")]);
    }
}
