//! llama.cpp from a runtime: shared libraries that are opened when the program starts (feature `prebuilt-runtime`).
//!
//! Before a runtime's libraries are opened, `autoplace_runtime` chooses one runtime, and checks that the runtime is
//! complete and belongs to this build. The result is the table of functions that [`raw`](crate::raw) calls through. The
//! libraries stay open until the process ends, because their threads may run and other libraries may refer to them.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

pub use autoplace_runtime::{Choice, Error, FOLDER, MANIFEST, Manifest, Set, VARIABLE, user_folder};
use libloading::Library;

use super::{BUILD, TARGET, isa};
use crate::raw;

/// An environment variable with a list of folders, separated as in `PATH`. These folders are searched for a backend's
/// libraries before the system's folders. For example, CUDA's libraries may lie in NVIDIA's Python packages.
pub const LIBRARIES: &str = "AUTOPLACE_LIBRARIES";

/// The open runtime. Its functions are installed in [`raw`] before it is stored here.
static OPENED: OnceLock<Choice> = OnceLock::new();

/// The folder to search instead of the usual ones. The lock is kept while a runtime is being opened.
static NAMED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Opens the runtime in this folder, or the best runtime below it, instead of searching the usual folders. A runtime
/// that is already open stays open.
///
/// # Errors
///
/// The errors of [`autoplace_runtime::find`]; [`Error::Unusable`] for libraries that the system does not open, or that
/// differ from their manifest.
pub fn open_from(folder: &Path) -> Result<&'static Choice, Error> {
    *NAMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
    open()
}

/// The open runtime, if there is one.
pub fn opened() -> Option<&'static Choice> {
    OPENED.get()
}

/// The runtime that this program would open, without opening it.
///
/// # Errors
///
/// The errors of [`autoplace_runtime::find`].
pub fn find(folder: Option<&Path>) -> Result<Choice, Error> {
    autoplace_runtime::find(folder, BUILD, TARGET, usable)
}

/// Opens a runtime, unless one is open.
pub(crate) fn open() -> Result<&'static Choice, Error> {
    let named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(choice) = opened() {
        return Ok(choice);
    }
    let choice = find(named.as_deref())?;
    let unusable = |reason| Error::Unusable { folder: choice.set.folder.clone(), reason };
    let functions = functions_of(&choice.set).map_err(unusable)?;
    raw::install(functions);
    Ok(OPENED.get_or_init(|| choice))
}

pub(crate) fn manifest() -> Option<&'static Manifest> {
    opened().map(|choice| &choice.set.manifest)
}

/// Checks that this machine can run a set: the CPU must support the set's code, and the system must have the libraries
/// that the set's backends need.
fn usable(set: &Set) -> Result<(), String> {
    let instructions = set.manifest.instructions.iter().map(String::as_str);
    let missing = isa::missing(instructions, isa::cpu_has);
    if !missing.is_empty() {
        return Err(format!("it was compiled for a CPU with {}, which this CPU lacks", missing.join(", ")));
    }
    for needed in &set.manifest.requires {
        let opened = folders(&set.folder).find_map(|folder| load(folder.join(&needed.library)).ok());
        let from = || format!("{} needs {} ({})", needed.backend, needed.library, needed.source);
        let opened =
            opened.map_or_else(|| load(&needed.library), Ok).map_err(|error| format!("{}: {error}", from()))?;
        let version = needed.cuda.map_or(Ok(()), |least| is_as_new(&opened, least));
        // The library stays open, so a backend that opens a library of the same name gets this library.
        std::mem::forget(opened);
        version.map_err(|problem| format!("{}: {problem}", from()))?;
    }
    Ok(())
}

/// Checks that NVIDIA's driver supports at least this version of CUDA. With an older driver a newer toolkit finds no
/// card, and reports that only in a log.
fn is_as_new(driver: &Library, least: u32) -> Result<(), String> {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: the type is that in cuda.h, and the function may be called before `cuInit`.
    let failed = unsafe { driver.get::<Version>(b"cuDriverGetVersion\0").map_or(1, |ask| ask(&raw mut version)) };
    let shown = |version: u32| format!("{}.{}", version / 1000, version % 1000 / 10);
    match u32::try_from(version) {
        Ok(version) if failed == 0 && version >= least => Ok(()),
        Ok(version) if failed == 0 => {
            Err(format!("it supports CUDA {}, and {} is needed", shown(version), shown(least)))
        }
        _ => Err("it does not report its version".to_owned()),
    }
}

/// The folders with a set's additional libraries: the set's own folders, and those that the user names.
fn folders(set: &Path) -> impl Iterator<Item = PathBuf> {
    let others = std::env::var_os(LIBRARIES).unwrap_or_default();
    let others: Vec<PathBuf> = std::env::split_paths(&others).filter(|folder| folder.is_absolute()).collect();
    std::iter::once(set.to_owned()).chain(others)
}

/// Opens a set's libraries and finds their functions.
fn functions_of(set: &Set) -> Result<raw::Functions, String> {
    alone(set)?;
    said_in_file(set)?;
    let open = |name: &String| load(set.folder.join(name)).map_err(|error| error.to_string());
    let libraries = set.manifest.libraries.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    same_build(find_in(&libraries, c"shim_build")?.cast())?;
    // SAFETY: the set is complete, and its own data says that it was built from the sources of these bindings.
    let functions = unsafe { raw::Functions::find(|name| find_in(&libraries, name)) };
    // The libraries stay open until the process ends.
    std::mem::forget(libraries);
    functions
}

/// Checks that no other ggml is loaded: the loader would mix its functions with those of our libraries.
fn alone(set: &Set) -> Result<(), String> {
    let others =
        |what: &str| Err(format!("{what} of another ggml is in this process already, and a process can have only one"));
    if find_in(&[this_program()], c"ggml_backend_dev_count").is_ok() {
        return others("`ggml_backend_dev_count`");
    }
    match set.manifest.libraries.iter().find(|name| is_open(name)) {
        Some(name) => others(name),
        None => Ok(()),
    }
}

/// Checks which sources the library was built from. The file is read for this before the library is opened. An opened
/// library may never be closed again (C++'s inline variables exist once per process).
fn said_in_file(set: &Set) -> Result<(), String> {
    let library = set.manifest.libraries.last().ok_or("its manifest lists no library")?;
    let bytes = std::fs::read(set.folder.join(library)).map_err(|error| format!("{library}: {error}"))?;
    match memchr::memmem::find(&bytes, BUILD.as_bytes()) {
        Some(_) => Ok(()),
        None => Err(format!("{library} was not built as {BUILD}, although its manifest says so")),
    }
}

/// Compares the build constants of the libraries with ours. No function of the libraries has been called yet.
fn same_build(theirs: *const raw::shim_build_info) -> Result<(), String> {
    const NAME: usize = offset_of!(raw::shim_build_info, text);
    // SAFETY: a library that was built for this manifest has this constant (native/build.cpp), and stays open. The text
    // is read as bytes first, because in another build the fields after the text may have another layout.
    let text = unsafe { std::slice::from_raw_parts(theirs.byte_add(NAME).cast::<u8>(), BUILD.len() + 1) };
    if text != [BUILD.as_bytes(), &[0]].concat() {
        return Err(format!(
            "its libraries were built as {}, and not as {BUILD}, as its manifest says",
            text.escape_ascii()
        ));
    }
    // SAFETY: the library is of this build.
    let sizes = unsafe { (*theirs).sizes };
    if sizes == SIZES {
        Ok(())
    } else {
        Err(format!("its structures have {sizes:?} bytes, and this program's have {SIZES:?}"))
    }
}

/// The sizes of our structures, in the order of native/build.cpp.
#[allow(clippy::unnecessary_cast, reason = "C's enums are signed for MSVC")]
const SIZES: [u32; 18] = [
    size_of::<raw::llama_model_params>() as u32,
    size_of::<raw::llama_context_params>() as u32,
    size_of::<raw::llama_batch>() as u32,
    size_of::<raw::llama_token_data>() as u32,
    size_of::<raw::llama_token_data_array>() as u32,
    size_of::<raw::llama_sampler_i>() as u32,
    size_of::<raw::ggml_tensor>() as u32,
    size_of::<raw::ggml_backend_dev_props>() as u32,
    size_of::<raw::ggml_backend_buffer_type>() as u32,
    size_of::<raw::ggml_backend_buffer>() as u32,
    size_of::<raw::ggml_backend_i>() as u32,
    size_of::<raw::ggml_backend_device>() as u32,
    size_of::<raw::ggml_backend_reg>() as u32,
    size_of::<raw::shim_error>() as u32,
    size_of::<raw::shim_tensor>() as u32,
    size_of::<raw::shim_operation>() as u32,
    raw::GGML_TYPE_COUNT as u32,
    raw::GGML_OP_COUNT as u32,
];

fn load(name: impl AsRef<OsStr>) -> Result<Library, libloading::Error> {
    // SAFETY: opening a library runs its initialisers. The library belongs to a complete set of this build, or is a
    // system library that the backends of such a set would open.
    unsafe { Library::new(name) }
}

/// The address of a function or constant in the first library that has it.
fn find_in(libraries: &[Library], name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: only the address is used, and every symbol is a pointer.
    let find =
        |library: &Library| unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()).map(|symbol| *symbol) };
    let found = libraries.iter().find_map(|library| find(library).ok());
    found.ok_or_else(|| format!("none of its libraries has the function `{}`", name.to_string_lossy()))
}

/// A handle that finds symbols of the program itself, and of libraries whose symbols are global.
#[cfg(unix)]
fn this_program() -> Library {
    libloading::os::unix::Library::this().into()
}

#[cfg(unix)]
fn is_open(name: &str) -> bool {
    // The values in dlfcn.h: of Linux's C libraries, of macOS, and of the BSDs.
    const RTLD_NOLOAD: i32 = if cfg!(target_os = "linux") || cfg!(target_os = "android") {
        4
    } else if cfg!(target_vendor = "apple") {
        0x10
    } else {
        0x2000
    };
    let flags = RTLD_NOLOAD | libloading::os::unix::RTLD_LAZY;
    // SAFETY: RTLD_NOLOAD loads nothing, so no code runs.
    unsafe { libloading::os::unix::Library::open(Some(name), flags) }.is_ok()
}

#[cfg(windows)]
fn this_program() -> Library {
    libloading::os::windows::Library::this().expect("a process has a program").into()
}

#[cfg(windows)]
fn is_open(name: &str) -> bool {
    libloading::os::windows::Library::open_already_loaded(name).is_ok()
}
