#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod hash;
mod image;
mod limits;
mod sound;
mod timed;
mod written;

pub use self::error::Error;
pub use self::hash::MediaHash;
pub use self::image::Image;
pub use self::limits::{ImageLimits, SoundLimits};
pub use self::sound::Sound;
