//! A *runtime* is a complete set of shared libraries in one folder: libllama, ggml, its backends, and autoplace's
//! interface to them. A program opens it instead of linking llama.cpp. `runtime.json` in the same folder describes the
//! libraries.
//!
//! ```no_run
//! use autoplace_runtime::{installed, user_folder};
//!
//! for set in installed(&user_folder().expect("the user has a folder for data")) {
//!     let set = set?;
//!     set.check()?; // every byte is as the manifest states
//!     println!("{} bytes: {:?}", set.bytes(), set.manifest.backends);
//! }
//! # Ok::<(), autoplace_runtime::Error>(())
//! ```
//!
//! A folder flows in; a [`Set`] flows out. [`Set::check`] verifies that every file is as its [`Manifest`] states, and
//! [`Set::fits`] that the set was built for this program. [`find`] chooses the best set in the folders that a program
//! searches. `install` (the feature of that name) copies a set into the user's folder. This crate loads no library, and
//! fetches nothing without a request.

#![forbid(unsafe_code)]

mod error;
mod find;
#[cfg(feature = "install")]
mod install;
mod manifest;
mod set;

pub use error::Error;
pub use find::{Choice, FOLDER, VARIABLE, find, installed, remove, user_folder};
#[cfg(feature = "install")]
pub use install::{Progress, Source, install};
pub use manifest::{Entry, MANIFEST, Manifest, Requirement};
pub use set::Set;

// The example of the README must compile.
#[cfg(all(doctest, feature = "install"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
