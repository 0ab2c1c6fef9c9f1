//! The first words of a worker: that it is one, of which protocol, of which build.

use std::ffi::OsStr;

use serde::{Deserialize, Serialize};

use super::Error;
use super::channel::{Receiver, Sender};
use super::frame::Failed;

/// Set in the environment of a worker.
pub(super) const VARIABLE: &str = "AUTOPLACE_WORKER";

/// What it is set to.
pub(super) const VALUE: &str = "1";

/// Set to the level of log lines that the application wants.
pub(super) const LEVEL: &str = "AUTOPLACE_WORKER_LOG";

/// Before the first message: a name, and the version of all that follows.
const MAGIC: [u8; 8] = *b"autoplw\x01";

/// Says that this process is a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// As `load::build_name` has it.
    pub(crate) build: String,
}

pub(crate) fn is_worker() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == OsStr::new(VALUE))
}

impl Hello {
    pub(crate) fn say(&self, sender: &Sender) -> Result<bool, Error> {
        Ok(sender.bytes(&MAGIC) && sender.send(self)?)
    }

    pub(super) fn hear(receiver: &mut Receiver) -> Result<Self, Failed> {
        let magic: [u8; 8] = receiver.bytes().ok_or(Failed::Gone)?;
        if magic[..7] != MAGIC[..7] {
            let said = magic.escape_ascii();
            return Err(Failed::Senseless(format!("it began with \"{said}\"")));
        }
        if magic != MAGIC {
            let (theirs, ours) = (magic[7], MAGIC[7]);
            return Err(Failed::Senseless(format!(
                "it speaks version {theirs} of the protocol, and this is version {ours}"
            )));
        }
        receiver.receive()
    }
}
