//! Errors on their way from a worker to the application: as messages, and back to what they were.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Attempt, Error};
use crate::plan::{self, Shortfall};
use crate::worker;

/// An error on its way from a worker: with its fields where it has a type on this side, and else what it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    DoesNotFit {
        model: String,
        n_gpu_layers: u32,
        layers: u32,
        n_ctx: u32,
        devices: Vec<Shortfall>,
    },
    NoGpu {
        n_gpu_layers: u32,
    },
    Unknown {
        model: String,
        reason: String,
    },
    DeviceGone {
        device: String,
        present: Vec<String>,
    },
    OutOfMemory {
        device: String,
        name: String,
        needed: u64,
        free: u64,
    },
    Difference {
        device: String,
        name: String,
        planned: u64,
        headroom: u64,
        taken: u64,
        difference: u64,
    },
    AllAttempts {
        attempts: Vec<Attempt>,
        source: Box<Failure>,
    },
    Busy,
    NotLoaded,
    LoadCancelled {
        path: PathBuf,
    },
    Aborted,
    NoVocabulary,
    NoKvSlot {
        n_tokens: usize,
        n_ctx: u32,
    },
    InvalidParameter {
        name: String,
        value: String,
        reason: String,
    },
    UnsupportedCpu {
        required: Vec<String>,
        missing: Vec<String>,
    },
    Poisoned {
        reason: String,
    },
    Other {
        kind: String,
        message: String,
    },
}

impl Failure {
    fn other(kind: &str, error: &impl ToString) -> Self {
        Self::Other {
            kind: kind.to_owned(),
            message: error.to_string(),
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::Plan(error) => Self::from_plan(error),
            Error::DeviceGone { device, present } => Self::DeviceGone {
                device: device.clone(),
                present: present.clone(),
            },
            Error::OutOfMemory {
                device,
                name,
                needed,
                free,
            } => Self::OutOfMemory {
                device: device.clone(),
                name: name.clone(),
                needed: *needed,
                free: *free,
            },
            Error::Difference {
                device,
                name,
                planned,
                headroom,
                taken,
                difference,
            } => Self::Difference {
                device: device.clone(),
                name: name.clone(),
                planned: *planned,
                headroom: *headroom,
                taken: *taken,
                difference: *difference,
            },
            Error::AllAttempts { attempts, source } => Self::AllAttempts {
                attempts: attempts.clone(),
                source: Box::new((&**source).into()),
            },
            Error::NativeHeld { .. } => Self::other("NativeHeld", error),
            Error::NoRankHead { .. } => Self::other("NoRankHead", error),
            Error::Mtp(_) => Self::other("Mtp", error),
            Error::Embeds => Self::other("Embeds", error),
            Error::Generates => Self::other("Generates", error),
            Error::Busy => Self::Busy,
            Error::NotLoaded => Self::NotLoaded,
            Error::Native(error) => error.into(),
            Error::Gguf(error) => Self::other("Gguf", error),
            Error::Profile(error) => Self::other("Profile", error),
            Error::Adapter(error) => Self::other("Adapter", error),
            Error::SavedPlan(error) => Self::other("SavedPlan", error),
            Error::Worker(error) => Self::other("Worker", error),
        }
    }
}

impl Failure {
    fn from_plan(error: &plan::Error) -> Self {
        match error {
            plan::Error::DoesNotFit {
                model,
                n_gpu_layers,
                layers,
                n_ctx,
                devices,
            } => Self::DoesNotFit {
                model: model.clone(),
                n_gpu_layers: *n_gpu_layers,
                layers: *layers,
                n_ctx: *n_ctx,
                devices: devices.clone(),
            },
            plan::Error::NoGpu { n_gpu_layers } => Self::NoGpu {
                n_gpu_layers: *n_gpu_layers,
            },
            plan::Error::Unknown { model, reason } => Self::Unknown {
                model: model.clone(),
                reason: reason.clone(),
            },
            error => Self::other("Plan", error),
        }
    }
}

impl From<&llama_sys::Error> for Failure {
    fn from(error: &llama_sys::Error) -> Self {
        use llama_sys::Error as Native;

        match error {
            Native::LoadCancelled { path } => Self::LoadCancelled { path: path.clone() },
            Native::Aborted => Self::Aborted,
            Native::NoVocabulary => Self::NoVocabulary,
            Native::NoKvSlot { n_tokens, n_ctx } => Self::NoKvSlot {
                n_tokens: *n_tokens,
                n_ctx: *n_ctx,
            },
            Native::InvalidParameter {
                name,
                value,
                reason,
            } => Self::InvalidParameter {
                name: (*name).to_owned(),
                value: value.clone(),
                reason: reason.clone(),
            },
            Native::UnsupportedCpu { required, missing } => Self::UnsupportedCpu {
                required: required.clone(),
                missing: missing.clone(),
            },
            Native::Poisoned { reason } => Self::Poisoned {
                reason: reason.clone(),
            },
            error => Self::other("Native", error),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        use llama_sys::Error as Native;

        match failure {
            Failure::DoesNotFit {
                model,
                n_gpu_layers,
                layers,
                n_ctx,
                devices,
            } => Self::Plan(plan::Error::DoesNotFit {
                model,
                n_gpu_layers,
                layers,
                n_ctx,
                devices,
            }),
            Failure::NoGpu { n_gpu_layers } => Self::Plan(plan::Error::NoGpu { n_gpu_layers }),
            Failure::Unknown { model, reason } => {
                Self::Plan(plan::Error::Unknown { model, reason })
            }
            Failure::DeviceGone { device, present } => Self::DeviceGone { device, present },
            Failure::OutOfMemory {
                device,
                name,
                needed,
                free,
            } => Self::OutOfMemory {
                device,
                name,
                needed,
                free,
            },
            Failure::Difference {
                device,
                name,
                planned,
                headroom,
                taken,
                difference,
            } => Self::Difference {
                device,
                name,
                planned,
                headroom,
                taken,
                difference,
            },
            Failure::AllAttempts { attempts, source } => Self::AllAttempts {
                attempts,
                source: Box::new((*source).into()),
            },
            Failure::Busy => Self::Busy,
            Failure::NotLoaded => Self::NotLoaded,
            Failure::LoadCancelled { path } => Self::Native(Native::LoadCancelled { path }),
            Failure::Aborted => Self::Native(Native::Aborted),
            Failure::NoVocabulary => Self::Native(Native::NoVocabulary),
            Failure::NoKvSlot { n_tokens, n_ctx } => {
                Self::Native(Native::NoKvSlot { n_tokens, n_ctx })
            }
            Failure::InvalidParameter {
                name,
                value,
                reason,
            } => match known(&name) {
                Some(name) => Self::Native(Native::InvalidParameter {
                    name,
                    value,
                    reason,
                }),
                None => Self::Worker(worker::Error::Answered {
                    kind: "InvalidParameter".into(),
                    message: format!("{name} is {value}: {reason}"),
                }),
            },
            Failure::UnsupportedCpu { required, missing } => {
                Self::Native(Native::UnsupportedCpu { required, missing })
            }
            Failure::Poisoned { reason } => Self::Native(Native::Poisoned { reason }),
            Failure::Other { kind, message } => {
                Self::Worker(worker::Error::Answered { kind, message })
            }
        }
    }
}

/// The name of a parameter as the native layer's errors hold it, for those that a user of a [`Model`] sets.
fn known(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 27] = [
        "top_k",
        "top_p",
        "min_p",
        "temp",
        "typical_p",
        "top_n_sigma",
        "dynatemp_range",
        "dynatemp_exponent",
        "xtc_probability",
        "xtc_threshold",
        "penalty_freq",
        "penalty_present",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breaker",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_target",
        "adaptive_decay",
        "logit_bias",
        "token",
        "penalty_last_n",
        "penalty_repeat",
        "seed",
        "text",
    ];
    NAMES.into_iter().find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the error arrives in the application.
    fn sent(error: &Error) -> Error {
        let text = serde_json::to_string(&Failure::from(error)).unwrap();
        serde_json::from_str::<Failure>(&text).unwrap().into()
    }

    #[test]
    fn errors_with_a_type_arrive_as_what_they_are() {
        let shortfall = serde_json::json!(
            { "device": "RTX 4090", "needed": 3, "budget": 2, "free": 2, "missing": 1 }
        );
        let shortfall: Shortfall = serde_json::from_value(shortfall).unwrap();
        let errors = [
            Error::OutOfMemory {
                device: "CUDA0".into(),
                name: "RTX 4090".into(),
                needed: u64::MAX,
                free: 7,
            },
            Error::DeviceGone {
                device: "CUDA9".into(),
                present: vec!["CUDA0".into()],
            },
            Error::Difference {
                device: "CUDA0".into(),
                name: "RTX 4090".into(),
                planned: 1,
                headroom: 2,
                taken: 4,
                difference: 1,
            },
            Error::AllAttempts {
                attempts: vec![Attempt::unplanned(&Error::Busy)],
                source: Box::new(Error::Busy),
            },
            Error::Busy,
            Error::NotLoaded,
            Error::Plan(plan::Error::DoesNotFit {
                model: "llama".into(),
                n_gpu_layers: 1,
                layers: 33,
                n_ctx: 4096,
                devices: vec![shortfall],
            }),
            Error::Plan(plan::Error::NoGpu { n_gpu_layers: 2 }),
            Error::Native(llama_sys::Error::Aborted),
            Error::Native(llama_sys::Error::LoadCancelled {
                path: "model.gguf".into(),
            }),
            Error::Native(llama_sys::Error::InvalidParameter {
                name: "top_p",
                value: "2".into(),
                reason: "0.0 to 1.0".into(),
            }),
        ];
        for error in errors {
            assert_eq!(format!("{:?}", sent(&error)), format!("{error:?}"));
        }
    }

    #[test]
    fn an_error_without_a_type_arrives_with_its_kind_and_words() {
        let native = llama_sys::Error::State {
            reason: "altered".into(),
        };
        let error = Error::Native(native);
        let message = error.to_string();
        match sent(&error) {
            Error::Worker(worker::Error::Answered {
                kind,
                message: said,
            }) => {
                assert_eq!((kind.as_str(), said), ("Native", message));
            }
            other => panic!("{other:?}"),
        }
    }
}
