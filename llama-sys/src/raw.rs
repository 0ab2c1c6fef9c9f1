//! The raw bindings: llama.cpp's C API, ggml's backend interface and the shim, as bindgen wrote them.
//!
//! Regenerated and compared by `cargo xtask bindings`. One file serves every platform: C enums are [`CEnum`], the
//! single thing that differs between ABIs in what llama.cpp exposes. And one list of functions serves both ways to
//! them: they are linked, or (feature `prebuilt-runtime`) found in libraries that are opened, and called through a
//! table. Then no function may be called before [`Backend::init`](crate::Backend::init) has succeeded.

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

/// Functions of libraries that are linked.
#[cfg(not(feature = "prebuilt-runtime"))]
macro_rules! functions {
    ($($function:tt)*) => {
        unsafe extern "C" { $($function)* }
    };
}

/// Functions of libraries that are opened: a table of them, and for each a function that calls it there.
#[cfg(feature = "prebuilt-runtime")]
macro_rules! functions {
    ($(pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $returns:ty)?;)*) => {
        /// Where each function is.
        pub(crate) struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $returns)?,)*
        }

        impl Functions {
            /// Asks for each by its name.
            ///
            /// # Safety
            ///
            /// What `find` returns is the function of that name, of the llama.cpp of these bindings.
            pub(crate) unsafe fn find<E>(
                mut find: impl FnMut(&'static ::core::ffi::CStr) -> Result<*mut ::core::ffi::c_void, E>,
            ) -> Result<Self, E> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the text ends with the only NUL in it.
                        let address = find(unsafe { ::core::ffi::CStr::from_bytes_with_nul_unchecked(name.as_bytes()) })?;
                        // SAFETY: it is this function, as the caller promises, of this type, as the bindings say.
                        unsafe { ::core::mem::transmute::<_, unsafe extern "C" fn($($type),*) $(-> $returns)?>(address) }
                    },)*
                })
            }
        }

        $(pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $returns)? {
            // SAFETY: the table has this function, and the caller keeps its conditions.
            unsafe { (crate::runtime::functions().$name)($($argument),*) }
        })*
    };
}

include!("bindings.rs");
