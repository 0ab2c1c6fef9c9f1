//! The worker's side of generation: an engine for the texts of the application, or one session.

mod session;
mod texts;

pub(crate) use session::SessionHost;
pub(crate) use texts::Host;
