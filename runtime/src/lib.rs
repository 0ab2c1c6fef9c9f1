//! A *runtime* is a complete set of shared libraries in one folder, which a program opens instead of linking llama.cpp:
//! libllama, ggml, its backends, and autoplace's own door to them. `runtime.json` beside them says what they are.
//!
//! A folder flows in; a [`Set`] flows out, every byte of which is what its [`Manifest`] says and which was built for
//! this program ([`Set::check`]). [`find`] takes the best of the sets that lie where a program looks for them;
//! `install` (feature of the same name) brings one into the user's folder. Nothing is loaded here, and nothing fetched
//! unasked.

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

#[cfg(test)]
mod tests;
