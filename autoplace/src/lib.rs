#![cfg_attr(any(not(doctest), feature = "schemars"), doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace;

/// Defines builder methods: `name(argument: type) field = value, others.push(value);` assigns and returns the changed
/// value.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $ty:ty),*)
        $($($field:ident).+ $(($($item:expr),*))? $(= $value:expr)?),+;)*) => {
        $($(#[$doc])* pub fn $name(mut self, $($argument: $ty),*) -> Self {
            $(self.$($field).+ $(($($item),*))? $(= $value)?;)+
            self
        })*
    };
}

/// Implements `Debug` with these fields alone, because the other fields have no `Debug`.
macro_rules! debug_with {
    ($name:ident $(<$of:lifetime>)?: $($field:tt),*) => {
        impl std::fmt::Debug for $name $(<$of>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    };
}

pub mod embed;
mod error;
pub mod generate;
pub mod load;
mod serve;
pub mod watch;
pub mod worker;

#[doc(no_inline)]
pub use autoplace_chat as chat;
/// Models by name, for [`ModelBuilder::hub`] and [`ModelBuilder::preference`].
#[cfg(feature = "hub")]
#[doc(no_inline)]
pub use autoplace_hub as hub;
pub use autoplace_planner::memory::KvType;
#[doc(no_inline)]
pub use autoplace_planner::{Plan, Planner, gguf, machine, memory, plan, profile};
pub use embed::Embedder;
pub use error::Error;
pub use load::{AbortHandle, Model, ModelBuilder};
#[cfg(fuzzing)]
pub use serve::read_frames;
pub use serve::worker_main;
pub use worker::{Isolation, OnDeath, WorkerProcess};

/// Libraries that are opened at run time instead of linked, and where they come from: see docs/runtime.md.
#[cfg(feature = "prebuilt-runtime")]
#[doc(no_inline)]
pub use llama_sys::runtime;

/// The native layer, in the version that this crate was built with.
pub use llama_sys;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{AbortHandle, Embedder, Model, generate};

    /// As docs/using.md states.
    #[test]
    fn what_goes_to_other_threads() {
        fn is_sent<T: Send>() {}
        fn is_shared<T: Clone + Send + Sync>() {}
        is_shared::<(Model, generate::Engine, AbortHandle)>();
        is_sent::<(generate::Chat, generate::Session, generate::TokenStream)>();
        is_sent::<(generate::ChatStream<'_>, Embedder)>();
    }
}
