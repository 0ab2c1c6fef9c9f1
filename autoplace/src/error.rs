//! Any error of this crate, and what can be asked of it wherever it comes from.

use llama_sys::Cause;

use crate::{chat, embed, generate, gguf, load, plan, profile, watch, worker};

/// Any error of this crate: what `?` makes of those of its modules, whose methods return the narrower ones.
///
/// ```no_run
/// fn answer(model: &str) -> Result<String, autoplace::Error> {
///     let model = autoplace::Model::load(model)?;
///     Ok(model.generate("Why is the sky blue?").max_tokens(64).text()?)
/// }
///
/// match answer("model.gguf") {
///     Ok(text) => println!("{text}"),
///     Err(error) if error.is_out_of_memory() => println!("close other programs: {error}"),
///     Err(error) if error.is_bad_file() => println!("download it again: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model was not loaded, or not planned.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A text was not generated.
    #[error(transparent)]
    Generate(#[from] generate::Error),
    /// A text was not embedded, or not ranked.
    #[error(transparent)]
    Embed(#[from] embed::Error),
    /// A model is not watched.
    #[error(transparent)]
    Watch(#[from] watch::Error),
}

impl Error {
    /// Whether memory was lacking: no placement fits, another program took the memory, or a device refused it.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.native().is_some_and(was_refused_memory) || self.load().is_some_and(lacks_memory)
    }

    /// Whether a file is not what it was taken for: a model or an adapter that cannot be read, is damaged or
    /// is beyond what llama.cpp takes.
    #[must_use]
    pub fn is_bad_file(&self) -> bool {
        use load::Error::{Adapter, Gguf, Mtp, Profile};
        if matches!(self.load(), Some(Gguf(_) | Profile(_) | Adapter(_) | Mtp(_))) {
            return true;
        }
        if let Some(worker::Error::Answered { kind, .. }) = self.worker() {
            return ["Gguf", "Profile", "Adapter", "Mtp"].contains(&kind.as_str());
        }
        use llama_sys::Error::{AdapterLoad, ModelLoad, Unreadable};
        let refused = matches!(self.native(), Some(Unreadable { .. } | ModelLoad { .. } | AdapterLoad { .. }));
        refused && !self.is_out_of_memory()
    }

    /// Whether it was asked for: an [`AbortHandle`](crate::AbortHandle), or a load's progress callback that wants to
    /// go on no longer.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        use llama_sys::Error::{Aborted, LoadCancelled};
        matches!(self.native(), Some(Aborted | LoadCancelled { .. }))
    }

    fn load(&self) -> Option<&load::Error> {
        match self {
            Self::Load(error) => Some(error),
            Self::Generate(generate::Error::Load(error)) | Self::Embed(embed::Error::Load(error)) => Some(error),
            _ => None,
        }
    }

    fn native(&self) -> Option<&llama_sys::Error> {
        match (self, self.load()) {
            (Self::Generate(generate::Error::Native(error)) | Self::Embed(embed::Error::Native(error)), _)
            | (_, Some(load::Error::Native(error))) => Some(error),
            _ => None,
        }
    }

    fn worker(&self) -> Option<&worker::Error> {
        match (self, self.load()) {
            (Self::Generate(generate::Error::Worker(error)) | Self::Embed(embed::Error::Worker(error)), _)
            | (_, Some(load::Error::Worker(error))) => Some(error),
            _ => None,
        }
    }
}

/// What is not llama.cpp's own error.
fn lacks_memory(error: &load::Error) -> bool {
    use load::Error::{AllAttempts, Difference, OutOfMemory};
    match error {
        load::Error::Plan(error) => fits_nowhere(error),
        error => matches!(error, OutOfMemory { .. } | Difference { .. } | AllAttempts { .. }),
    }
}

fn fits_nowhere(error: &plan::Error) -> bool {
    match error {
        plan::Error::Beside { source, .. } => source.as_deref().is_none_or(fits_nowhere),
        error => matches!(error, plan::Error::DoesNotFit { .. }),
    }
}

fn was_refused_memory(error: &llama_sys::Error) -> bool {
    error.failure().is_some_and(|failure| failure.out_of_memory.is_some() || failure.cause == Cause::HostMemory)
}

macro_rules! by_way_of {
    ($($error:ty => $way:ident),+) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$way(error.into())
            }
        }
    )+};
}

by_way_of! {
    gguf::Error => Load, profile::Error => Load, plan::Error => Load, plan::SavedPlanError => Load,
    chat::Error => Generate
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's refusal to load a model, where a buffer of 5 bytes was refused or not.
    fn refused(out_of_memory: bool) -> llama_sys::Error {
        let buffer = out_of_memory.then_some(serde_json::json!({"buffer_type": "CUDA0", "bytes": 5}));
        let failure = serde_json::json!({"cause": "Refused", "reason": "no", "log": [], "out_of_memory": buffer});
        serde_json::from_value(serde_json::json!({"ModelLoad": {"path": "m", "failure": failure}})).unwrap()
    }

    fn does_not_fit() -> plan::Error {
        let device = |name, missing| serde_json::json!({"device": name, "needed": 9, "budget": 9 - missing, "free": 8, "missing": missing});
        let devices = [device("RTX 4090", 0), device("host", 3)];
        serde_json::from_value(serde_json::json!({"DoesNotFit": {
            "model": "m", "n_gpu_layers": 1, "layers": 2, "n_ctx": 512, "devices": devices,
        }}))
        .unwrap()
    }

    fn attempts() -> load::Error {
        load::Error::AllAttempts { attempts: Vec::new(), source: Box::new(refused(true).into()) }
    }

    #[test]
    fn every_shape_of_too_little_memory_is_one() {
        let (device, name) = (|| "CUDA0".to_owned(), || "RTX 4090".to_owned());
        let out = load::Error::OutOfMemory { device: device(), name: name(), needed: 7, free: 6 };
        let (planned, headroom, taken, difference) = (1, 2, 4, 1);
        let difference =
            load::Error::Difference { device: device(), name: name(), planned, headroom, taken, difference };
        let generating = generate::Error::from(load::Error::from(does_not_fit()));
        for error in [
            Error::from(does_not_fit()),
            generating.into(),
            out.into(),
            difference.into(),
            attempts().into(),
            embed::Error::from(refused(true)).into(),
        ] {
            assert!(error.is_out_of_memory() && !error.is_bad_file(), "{error}");
        }
    }

    #[test]
    fn bad_files_and_what_was_aborted_are_told_apart() {
        let answered = |kind: &str| worker::Error::Answered { kind: kind.into(), message: "".into() };
        let gone = gguf::Error::NotAFile { path: "m".into() };
        let cancelled = llama_sys::Error::LoadCancelled { path: "m".into() };
        let aborted = generate::Error::from(llama_sys::Error::Aborted);
        for (error, is_bad_file, is_aborted) in [
            (Error::from(gone), true, false),
            (load::Error::from(refused(false)).into(), true, false),
            (load::Error::from(answered("Gguf")).into(), true, false),
            (load::Error::from(answered("Load")).into(), false, false),
            (load::Error::from(cancelled).into(), false, true),
            (aborted.into(), false, true),
            (load::Error::Busy.into(), false, false),
        ] {
            assert_eq!((error.is_bad_file(), error.is_aborted()), (is_bad_file, is_aborted));
            assert!(!error.is_out_of_memory(), "{error}");
        }
    }
}
