//! Pictures. A plan ([`plan`]) or a measurement ([`measurement`]) flows in, and an SVG document flows out. A [`page`]
//! is an HTML document around a picture (feature `pictures`).
//!
//! A picture needs no other file and no font: its texts are text elements. It has a light and a dark form, selected by
//! `prefers-color-scheme`, and is readable at a width of 400 pixels. The same input gives the same picture.
//!
//! ```no_run
//! use autoplace::plan::Request;
//! use autoplace_measure::{Measure, Steps, picture};
//!
//! let sweep = Measure::new("model.gguf").request(Request::new().n_ctx(4096)).sweep(Steps::Edge)?;
//! std::fs::write("cliff.svg", picture::measurement(&sweep, &[])?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod canvas;
mod measured;
pub mod page;
mod placed;
mod series;
mod shared;

pub use measured::svg as measurement;
pub use placed::svg as plan;
pub use series::Series;
pub use shared::{SharedDevice, svg as shared};
