//! llama.cpp as the planner's witness: a header flows in, what llama.cpp would allocate flows out.

use super::Error;
use super::devices::by_name;
use crate::gguf::Header;
use crate::machine::Gpu;
use crate::memory::probe::Skeleton;
use crate::memory::{ContextParams, Footprints, Split};
use crate::plan::Probe;

/// llama.cpp's own arithmetic, for [`Planner::plan_probed`](crate::plan::Planner::plan_probed): its `no_alloc` load of the model's
/// skeleton. Allocates nothing; the GPUs of the machine must be devices of this process.
///
/// [`ModelBuilder`](super::ModelBuilder) makes one by itself. This is for those who plan in steps.
#[derive(Debug)]
pub struct NativeProbe {
    skeleton: Skeleton,
}

impl NativeProbe {
    /// A probe of the model of this header, whose skeleton it writes into memory (without it, into a temporary file).
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] when the skeleton cannot be made or written.
    pub fn new(header: &Header) -> Result<Self, Error> {
        Ok(Self {
            skeleton: Skeleton::of(header)?,
        })
    }
}

impl Probe for NativeProbe {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
        let devices = by_name(
            gpus.iter()
                .map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())),
        )?;
        Ok(self.skeleton.probe(&devices, params, split)?)
    }
}
