//! Why nothing is watched.

/// An error when the watching begins.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source has nothing to watch: the model is gone.
    #[error("there is no model to watch")]
    NothingToWatch,
    /// The system gave no thread.
    #[error("the thread that watches cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}
