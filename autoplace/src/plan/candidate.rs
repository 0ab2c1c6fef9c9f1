//! One GPU (or none), what placements on it cost by the estimate, and the same asked of a probe.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::machine::Gpu;
use crate::memory::{ContextParams, Estimate, Footprint, Footprints, Split};

use super::Error;
use super::fit::{Levels, Room};
use super::search::Cost;

/// llama.cpp itself, asked what a placement takes without loading it.
///
/// Called for a handful of placements per plan. The load room brings it; without one the estimate decides.
pub trait Probe {
    /// Bytes per device with the model split so over these GPUs, or on the host alone where there are none.
    ///
    /// `output` and `mapped` of the answer may be left out (0, `None`): the planner adds the buffer of logits, which llama.cpp's
    /// breakdown does not count, to the host's `compute` where `output` is 0.
    ///
    /// # Errors
    ///
    /// Whatever keeps llama.cpp from saying so.
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;
}

/// One GPU (or none) with its estimate.
pub(super) struct Candidate<'a> {
    pub(super) room: Room<'a>,
    pub(super) estimate: Estimate,
    pub(super) params: ContextParams,
}

/// A number of layers that fits a candidate.
pub(super) struct Choice {
    pub(super) n_gpu_layers: u32,
    pub(super) levels: Levels,
    /// Of the number above, if there is one that was looked at: what it lacks.
    pub(super) above: Option<Levels>,
}

impl Candidate<'_> {
    pub(super) fn estimated(&self, n_gpu_layers: u32) -> Levels {
        self.levels(n_gpu_layers, &self.estimate.footprints(n_gpu_layers))
    }

    pub(super) fn levels(&self, n_gpu_layers: u32, footprints: &Footprints) -> Levels {
        self.room.levels(footprints, |part| {
            self.estimate.uncertainty(n_gpu_layers, part)
        })
    }

    pub(super) fn probed(&self, footprints: &Footprints) -> Levels {
        self.room.levels(footprints, |_| 0)
    }
}

/// A probe of one candidate, as a cost to search by. It asks nothing twice.
pub(super) struct Asked<'a, 'b> {
    probe: &'a dyn Probe,
    pub(super) candidate: &'a Candidate<'b>,
    known: RefCell<BTreeMap<u32, Footprints>>,
}

impl<'a, 'b> Asked<'a, 'b> {
    pub(super) fn new(probe: &'a dyn Probe, candidate: &'a Candidate<'b>) -> Self {
        Self {
            probe,
            candidate,
            known: RefCell::default(),
        }
    }

    /// All that was answered, by number of layers.
    pub(super) fn answers(self) -> BTreeMap<u32, Footprints> {
        self.known.into_inner()
    }
}

impl Cost for Asked<'_, '_> {
    type Error = Error;

    fn footprints(&self, n_gpu_layers: u32) -> Result<Footprints, Error> {
        if let Some(known) = self.known.borrow().get(&n_gpu_layers) {
            return Ok(known.clone());
        }
        let candidate = self.candidate;
        let mut footprints = self
            .probe
            .footprints(
                candidate.room.gpu.as_slice(),
                &candidate.params,
                &Split::layers(n_gpu_layers),
            )
            .map_err(|source| Error::Probe {
                n_gpu_layers,
                source,
            })?;
        if footprints.output == 0 {
            footprints.output = candidate.estimate.footprints(n_gpu_layers).output;
            footprints.host += Footprint::new(0, 0, footprints.output);
        }
        let known = footprints.clone();
        self.known.borrow_mut().insert(n_gpu_layers, known);
        Ok(footprints)
    }
}
