//! The error type of the whole crate, with queries that work for every source.

use llama_sys::FailureCause;

use crate::plan::Advice;
use crate::{chat, embed, generate, gguf, load, plan, profile, watch, worker};

/// An error of any module of this crate. The operator `?` converts the errors of the single modules into this type.
///
/// ```no_run
/// fn answer(model: &str) -> Result<String, autoplace::Error> {
///     let model = autoplace::Model::load(model)?;
///     Ok(model.generate("Why is the sky blue?").max_tokens(64).text()?)
/// }
///
/// match answer("model.gguf") {
///     Ok(text) => println!("{text}"),
///     Err(error) if error.is_out_of_memory() => match error.advice() {
///         Some(advice) => println!("{error}\n{advice}"), // what makes it fit
///         None => println!("close other programs: {error}"),
///     },
///     Err(error) if error.is_bad_file() => println!("download it again: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model was not loaded or planned.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A text was not generated.
    #[error(transparent)]
    Generate(#[from] generate::Error),
    /// A text was not embedded or ranked.
    #[error(transparent)]
    Embed(#[from] embed::Error),
    /// A model cannot be watched.
    #[error(transparent)]
    Watch(#[from] watch::Error),
}

/// A lack of memory: the device, the needed bytes, and the free bytes.
type Lack<'a> = (&'a str, Option<u64>, Option<u64>);

/// The inner errors that an error of this crate may have: an error of a load, of llama.cpp, or of the worker process.
#[derive(Clone, Copy, Default)]
pub(crate) struct Underneath<'a> {
    pub(crate) load: Option<&'a load::Error>,
    pub(crate) native: Option<&'a llama_sys::Error>,
    pub(crate) worker: Option<&'a worker::Error>,
}

impl<'a> Underneath<'a> {
    fn is_bad_file(self) -> bool {
        use load::Error::{Adapter, Gguf, Mtp, Profile};
        if matches!(self.load, Some(Gguf(_) | Profile(_) | Adapter(_) | Mtp(_))) {
            return true;
        }
        if let Some(worker::Error::Answered { kind, .. }) = self.worker {
            return ["Gguf", "Profile", "Adapter", "Mtp"].contains(&kind.as_str());
        }
        use llama_sys::Error::{AdapterLoad, ModelLoad, Unreadable};
        let refused = matches!(self.native, Some(Unreadable { .. } | ModelLoad { .. } | AdapterLoad { .. }));
        refused && self.lack().is_none()
    }

    fn is_aborted(self) -> bool {
        #[cfg(feature = "hub")]
        if let Some(load::Error::Hub(crate::hub::Error::Cancelled { .. })) = self.load {
            return true;
        }
        use llama_sys::Error::{Aborted, LoadCancelled};
        matches!(self.native, Some(Aborted | LoadCancelled { .. }))
    }

    fn lack(self) -> Option<Lack<'a>> {
        self.native.and_then(of_native).or_else(|| of_load(self.load?))
    }

    fn advice(self) -> Option<&'a Advice> {
        advice_of(self.load?)
    }
}

fn advice_of(error: &load::Error) -> Option<&Advice> {
    match error {
        load::Error::Plan(error) => error.advice(),
        load::Error::AllAttempts { source, .. } => advice_of(source),
        _ => None,
    }
}

/// The methods that every error type of this crate has.
macro_rules! questions {
    ($($error:ty),+) => {$(
        impl $error {
            /// Whether memory ran short: no placement fits, another program took the memory, or a device refused it.
            #[must_use]
            pub fn is_out_of_memory(&self) -> bool {
                self.underneath().lack().is_some()
            }

            /// Whether a file is bad: a model or an adapter that cannot be read, is damaged, or exceeds llama.cpp's
            /// limits.
            #[must_use]
            pub fn is_bad_file(&self) -> bool {
                self.underneath().is_bad_file()
            }

            /// Whether the caller aborted the call, with an [`AbortHandle`](crate::AbortHandle) or with a progress
            /// callback of a load or a fetch.
            #[must_use]
            pub fn is_aborted(&self) -> bool {
                self.underneath().is_aborted()
            }

            /// The device that lacks memory: the GPU's display name or ggml's name, or `host`.
            #[must_use]
            pub fn device(&self) -> Option<&str> {
                self.underneath().lack().map(|(device, ..)| device)
            }

            /// Bytes that the device would have needed, if known.
            #[must_use]
            pub fn needed(&self) -> Option<u64> {
                self.underneath().lack()?.1
            }

            /// Bytes that were free on the device, if known.
            #[must_use]
            pub fn free(&self) -> Option<u64> {
                self.underneath().lack()?.2
            }

            /// If a model fits nowhere, the changes that would make it fit. A plan has confirmed each change. The error
            /// message ends with the cheapest change. For a model that fits partly,
            /// [`ModelBuilder::advice`](crate::ModelBuilder::advice) returns such changes.
            #[must_use]
            pub fn advice(&self) -> Option<&Advice> {
                self.underneath().advice()
            }
        }
    )+};
}

questions!(Error, load::Error, generate::Error, embed::Error);

impl Error {
    fn underneath(&self) -> Underneath<'_> {
        match self {
            Self::Load(error) => error.underneath(),
            Self::Generate(error) => error.underneath(),
            Self::Embed(error) => error.underneath(),
            Self::Watch(_) => Underneath::default(),
        }
    }
}

impl load::Error {
    fn underneath(&self) -> Underneath<'_> {
        let underneath = Underneath { load: Some(self), ..Underneath::default() };
        match self {
            Self::Native(error) => Underneath { native: Some(error), ..underneath },
            Self::Worker(error) => Underneath { worker: Some(error), ..underneath },
            _ => underneath,
        }
    }
}

impl generate::Error {
    fn underneath(&self) -> Underneath<'_> {
        match self {
            Self::Load(error) => error.underneath(),
            Self::Native(error) => Underneath { native: Some(error), ..Underneath::default() },
            Self::Worker(error) => Underneath { worker: Some(error), ..Underneath::default() },
            _ => Underneath::default(),
        }
    }
}

impl embed::Error {
    fn underneath(&self) -> Underneath<'_> {
        match self {
            Self::Load(error) => error.underneath(),
            Self::Native(error) => Underneath { native: Some(error), ..Underneath::default() },
            Self::Worker(error) => Underneath { worker: Some(error), ..Underneath::default() },
            _ => Underneath::default(),
        }
    }
}

fn of_load(error: &load::Error) -> Option<Lack<'_>> {
    match error {
        load::Error::Plan(error) => of_plan(error),
        load::Error::OutOfMemory { name, needed, free, .. } => Some((name, Some(*needed), Some(*free))),
        load::Error::Difference { name, taken, .. } => Some((name, Some(*taken), None)),
        load::Error::AllAttempts { attempts, source } => {
            let failure = attempts.iter().rev().find_map(|attempt| attempt.failure.as_ref());
            let lack = failure.and_then(|failure| Some((failure.device.as_deref()?, failure.needed, failure.free)));
            lack.or_else(|| of_load(source))
        }
        load::Error::Native(error) => of_native(error),
        _ => None,
    }
}

/// The device that lacks the most memory in the placement that lacks the least memory in total.
fn of_plan(error: &plan::Error) -> Option<Lack<'_>> {
    match error {
        plan::Error::DoesNotFit { devices, .. } => {
            let most = devices.iter().max_by_key(|device| device.missing)?;
            Some((&most.device, Some(most.needed), Some(most.free)))
        }
        plan::Error::Beside { source: Some(error), .. } => of_plan(error),
        plan::Error::Beside { companions, source: None } => Some((companions, None, None)),
        _ => None,
    }
}

fn of_native(error: &llama_sys::Error) -> Option<Lack<'_>> {
    let failure = error.failure()?;
    if let Some(refused) = &failure.out_of_memory {
        return Some((&refused.buffer_type, Some(refused.bytes), None));
    }
    (failure.cause == FailureCause::HostMemory).then_some(("host", None, None))
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
    use crate::load::{Attempt, Stage};

    /// The error if llama.cpp refuses to load a model, with or without a refused buffer of 5 bytes.
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

    fn attempts(device: Option<&str>) -> load::Error {
        let failure = serde_json::json!({
            "stage": Stage::Weights, "device": device, "needed": 4, "free": 3, "message": "",
        });
        let attempt = serde_json::json!({"n_gpu_layers": 1, "layers": 2, "failure": failure});
        let attempts: Vec<Attempt> = vec![serde_json::from_value(attempt).unwrap()];
        load::Error::AllAttempts { attempts, source: Box::new(refused(true).into()) }
    }

    #[test]
    fn every_lack_of_memory_is_recognised() {
        let (device, name) = (|| "CUDA0".to_owned(), || "RTX 4090".to_owned());
        let out = load::Error::OutOfMemory { device: device(), name: name(), needed: 7, free: 6 };
        let (planned, headroom, taken, difference) = (1, 2, 4, 1);
        let difference =
            load::Error::Difference { device: device(), name: name(), planned, headroom, taken, difference };
        let generating = generate::Error::from(load::Error::from(does_not_fit()));
        for (error, device, needed, free) in [
            (Error::from(does_not_fit()), "host", Some(9), Some(8)),
            (generating.into(), "host", Some(9), Some(8)),
            (out.into(), "RTX 4090", Some(7), Some(6)),
            (difference.into(), "RTX 4090", Some(4), None),
            (attempts(Some("CUDA1")).into(), "CUDA1", Some(4), Some(3)),
            (attempts(None).into(), "CUDA0", Some(5), None),
            (embed::Error::from(refused(true)).into(), "CUDA0", Some(5), None),
        ] {
            assert!(error.is_out_of_memory() && !error.is_bad_file(), "{error}");
            assert_eq!((error.device(), error.needed(), error.free()), (Some(device), needed, free));
            // The inner error of `load()` returns the same results.
            if let Error::Load(error) = &error {
                assert!(error.is_out_of_memory() && !error.is_aborted(), "{error}");
                assert_eq!((error.device(), error.needed(), error.free()), (Some(device), needed, free));
            }
        }
    }

    #[test]
    fn bad_files_and_aborted_calls_are_distinguished() {
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
            assert_eq!(error.device(), None, "{error}");
        }
    }
}
