//! The raw bindings: llama.cpp's C API, ggml's backend interface and the shim, as bindgen wrote them.
//!
//! `cargo xtask bindings` regenerates and compares them. One file serves every platform: C enums are [`CEnum`], the
//! only difference between ABIs in llama.cpp's interface. One list of functions serves both ways to call them. The
//! functions are linked, or (feature `prebuilt-runtime`) they are found in opened libraries and called through a table.
//! With such a table, no function may be called before [`Backend::init`](crate::Backend::init) has succeeded.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    clippy::all
)]

/// The type of a C enum without negative values: unsigned for gcc and clang, signed for MSVC.
#[cfg(target_env = "msvc")]
pub type CEnum = core::ffi::c_int;
/// The type of a C enum without negative values: unsigned for gcc and clang, signed for MSVC.
#[cfg(not(target_env = "msvc"))]
pub type CEnum = core::ffi::c_uint;

/// For linked libraries: declares the functions.
#[cfg(not(feature = "prebuilt-runtime"))]
macro_rules! functions {
    ($($function:tt)*) => {
        unsafe extern "C" { $($function)* }
    };
}

/// For opened libraries: a table of addresses, and for each address a function that calls it.
#[cfg(feature = "prebuilt-runtime")]
macro_rules! functions {
    ($(pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $returns:ty)?;)*) => {
        /// The address of each function.
        pub(crate) struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $returns)?,)*
        }

        impl Functions {
            /// Looks up each function by its name.
            ///
            /// # Safety
            ///
            /// `find` must return the function of the given name, from a llama.cpp that was built with these bindings.
            pub(crate) unsafe fn find<E>(
                mut find: impl FnMut(&'static ::core::ffi::CStr) -> Result<*mut ::core::ffi::c_void, E>,
            ) -> Result<Self, E> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the text ends with the only NUL in it.
                        let address = find(unsafe { ::core::ffi::CStr::from_bytes_with_nul_unchecked(name.as_bytes()) })?;
                        // SAFETY: the caller promises that this is the function's address, and the bindings declare the
                        // function's type.
                        unsafe { ::core::mem::transmute::<_, unsafe extern "C" fn($($type),*) $(-> $returns)?>(address) }
                    },)*
                })
            }
        }

        $(pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $returns)? {
            // SAFETY: the table contains this function, and the caller fulfils the function's conditions.
            unsafe { (functions().$name)($($argument),*) }
        })*
    };
}

/// The functions of the runtime that was opened.
#[cfg(feature = "prebuilt-runtime")]
static FUNCTIONS: std::sync::OnceLock<Functions> = std::sync::OnceLock::new();

/// Sets the table through which every function in this module is called. Later calls change nothing.
#[cfg(feature = "prebuilt-runtime")]
pub(crate) fn install(functions: Functions) {
    let _ = FUNCTIONS.set(functions);
}

/// The table.
///
/// # Panics
///
/// If no runtime is open. Callers of these functions have a [`Backend`](crate::Backend), or an object that was made
/// with a `Backend`.
#[cfg(feature = "prebuilt-runtime")]
fn functions() -> &'static Functions {
    FUNCTIONS.get().expect("a runtime is opened before llama.cpp is called")
}

include!("bindings.rs");
