//! A model in a worker process: what is said to load it there, and the handle's side of it.
//!
//! In: a [`Load`], sent to a worker of the room [`worker`](crate::worker). Out: where the model went ([`Told`]), or why it did not. The
//! worker's side is in `serve`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::model::{Model, Placed};
use super::progress::Progress;
use super::recipe::Recipe;
use super::{Attempt, Error, LoadReport, build_name};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::{self, Plan, Replay, SavedPlan, Shortfall};
use crate::worker::{self, Worker, WorkerProcess};

/// What a worker is asked for, of the load. Externally tagged, so that its names are apart from those of a generation's requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The first message of all.
    Load(Box<Load>),
    /// The progress callback does not want to go on.
    CancelLoad,
    /// Place the model anew.
    Replace { plan: Option<Box<Plan>> },
}

/// How a worker is to load a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(super) recipe: Recipe,
    pub(super) saved: Option<Box<SavedPlan>>,
    pub(super) replay: Replay,
    /// Whether anybody wants to know of the progress.
    pub(crate) tell_progress: bool,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// From 0.0 to 1.0.
    Progress(f32),
    Loaded(Box<Told>),
    Failed(Failure),
}

/// Where a model went, as its handle tells it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    machine: Machine,
    allocated: Footprints,
    /// With the plan that was followed.
    report: LoadReport,
}

impl Told {
    /// Of a model of this process.
    pub(crate) fn of(model: &Model) -> Self {
        Self {
            machine: (*model.machine()).clone(),
            allocated: model.allocated(),
            report: (*model.report()).clone(),
        }
    }

    fn placed(self) -> Placed {
        Placed::told(self.machine, self.allocated, self.report)
    }
}

/// A model's worker, lent to whoever talks with it.
#[derive(Debug)]
pub(super) struct Remote {
    load: Load,
    process: WorkerProcess,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Ready(Worker),
    /// To whoever talks with it, or starts another.
    Lent {
        id: Option<u32>,
    },
    Dead(worker::Error),
}

impl Remote {
    /// Starts a worker and has the model loaded there.
    pub(super) fn start(
        load: Load,
        process: WorkerProcess,
        progress: &Progress,
    ) -> Result<(Self, Placed), Error> {
        let mut attempts = process.attempts();
        let (worker, told) = loop {
            match load_in(&process, &load, progress) {
                Err(Error::Worker(error)) if error.is_death() && attempts > 0 => {
                    tracing::warn!("{error}; starting another");
                    attempts -= 1;
                }
                result => break result?,
            }
        };
        let remote = Self {
            load,
            process,
            state: Mutex::new(State::Ready(worker)),
        };
        Ok((remote, told.placed()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a worker and has it load.
fn load_in(
    process: &WorkerProcess,
    load: &Load,
    progress: &Progress,
) -> Result<(Worker, Told), Error> {
    const DOING: &str = "loading the model";
    let mut worker = Worker::start(process, &build_name())?;
    let request = Request::Load(Box::new(load.clone()));
    worker.send(&request, DOING)?;
    let mut cancelled = false;
    loop {
        match worker.receive(DOING)? {
            Reply::Progress(done) => {
                // Once is enough: it may tell of more before it hears of it.
                if !cancelled && !progress.tell(done) {
                    worker.send(&Request::CancelLoad, DOING)?;
                    cancelled = true;
                }
            }
            Reply::Loaded(told) => return Ok((worker, *told)),
            Reply::Failed(failure) => return Err(failure.into()),
        }
    }
}

/// For what a worker has and this process does not.
pub(super) fn elsewhere(what: &'static str) -> Error {
    worker::Error::Elsewhere { what }.into()
}

impl Model {
    /// Whether the model is in a worker.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.remote().is_some()
    }

    /// The process that the model runs in, where that is a worker.
    #[must_use]
    pub fn worker_id(&self) -> Option<u32> {
        match &*self.remote()?.state() {
            State::Ready(worker) => Some(worker.id()),
            State::Lent { id } => *id,
            State::Dead(_) => None,
        }
    }

    /// How often a worker may be started again for one generation.
    pub(crate) fn worker_attempts(&self) -> u32 {
        self.remote().map_or(0, |remote| remote.process.attempts())
    }

    /// Lends the worker.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while it is lent already; [`Error::Worker`] with the death that it died. The caller then is the one to start
    /// another ([`restart_worker`](Self::restart_worker)), or to say that it stays dead ([`worker_is_dead`](Self::worker_is_dead)).
    pub(crate) fn take_worker(&self) -> Result<Worker, Error> {
        let remote = self.remote().ok_or(Error::NotLoaded)?;
        let mut state = remote.state();
        let id = match &*state {
            State::Ready(worker) => Some(worker.id()),
            State::Lent { id } => *id,
            State::Dead(_) => None,
        };
        match std::mem::replace(&mut *state, State::Lent { id }) {
            State::Ready(worker) => Ok(worker),
            State::Lent { .. } => Err(Error::Busy),
            State::Dead(error) => Err(error.into()),
        }
    }

    /// Takes a lent worker back.
    pub(crate) fn return_worker(&self, worker: Worker) {
        if let Some(remote) = self.remote() {
            *remote.state() = State::Ready(worker);
        }
    }

    /// Says that the worker is no more.
    pub(crate) fn worker_is_dead(&self, error: worker::Error) {
        if let Some(remote) = self.remote() {
            *remote.state() = State::Dead(error);
        }
    }

    /// Starts another worker in place of a dead one and has the model loaded there, by what is free by now. It is lent at once. After
    /// an error the model stays without.
    pub(crate) fn restart_worker(&self) -> Result<Worker, Error> {
        let remote = self.remote().ok_or(Error::NotLoaded)?;
        match load_in(&remote.process, &remote.load, &Progress::default()) {
            Ok((worker, told)) => {
                *remote.state() = State::Lent {
                    id: Some(worker.id()),
                };
                self.set_placed(told.placed());
                Ok(worker)
            }
            Err(error) => {
                if let Error::Worker(error) = &error {
                    *remote.state() = State::Dead(error.clone());
                }
                Err(error)
            }
        }
    }

    /// [`Model::replace`] of a model in a worker.
    pub(super) fn replace_in_worker(&self, plan: Option<Plan>) -> Result<(), Error> {
        const DOING: &str = "placing the model anew";
        let mut worker = self.take_worker().inspect_err(|error| {
            if let Error::Worker(error) = error {
                self.worker_is_dead(error.clone());
            }
        })?;
        let plan = plan.map(Box::new);
        let reply = worker
            .send(&Request::Replace { plan }, DOING)
            .and_then(|()| worker.receive(DOING));
        match reply {
            Ok(reply) => {
                self.return_worker(worker);
                match reply {
                    Reply::Loaded(told) => {
                        self.set_placed(told.placed());
                        Ok(())
                    }
                    Reply::Failed(failure) => Err(failure.into()),
                    Reply::Progress(_) => Err(worker::Error::Protocol {
                        doing: DOING,
                        reason: "it told of a progress that nobody asked for".into(),
                    }
                    .into()),
                }
            }
            Err(error) => {
                self.worker_is_dead(error.clone());
                Err(error.into())
            }
        }
    }

    fn set_placed(&self, placed: Placed) {
        *self.placed_mut() = Arc::new(placed);
    }
}

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
            Error::Busy => Self::Busy,
            Error::NotLoaded => Self::NotLoaded,
            Error::Native(error) => error.into(),
            Error::Gguf(error) => Self::other("Gguf", error),
            Error::Profile(error) => Self::other("Profile", error),
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
    const NAMES: [&str; 8] = [
        "top_k",
        "top_p",
        "min_p",
        "temp",
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
        let shortfall = Shortfall {
            device: "RTX 4090".into(),
            needed: 3,
            budget: 2,
            free: 2,
            missing: 1,
        };
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
