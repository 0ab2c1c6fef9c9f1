//! A model that drafts: what it takes is the estimate of a model like any other.

use crate::gguf::Header;
use crate::machine::Gpu;
use crate::memory::{ContextParams, Estimate, KvType, Workload};
use crate::profile::ModelProfile;

use super::{CompanionBytes, Error, file};

/// Drafts that are given the main model's hidden states (common/speculative.cpp, `common_speculative_type`): their
/// contexts return more than logits.
const HEADS: &[&str] = &["eagle3", "dflash", "gemma4-assistant"];

/// A draft, and its header for its vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) header: Header,
    pub(super) profile: ModelProfile,
}

impl Draft {
    pub(super) fn read(header: &Header) -> Result<Self, Error> {
        let architecture = header.architecture()?;
        if architecture == "clip" {
            return Err(Error::WrongKind {
                file: file(header),
                architecture: architecture.to_owned(),
                role: "a draft",
                wanted: "a text model; a projector is given as mmproj",
            });
        }
        if HEADS.contains(&architecture) {
            let what = format!("a draft of architecture `{architecture}`");
            return Err(Error::Unread { file: file(header), what });
        }
        Ok(Self { header: header.clone(), profile: ModelProfile::from_header(header)? })
    }

    /// The parameters of its context beside the main model's (common/speculative.cpp,
    /// `common_base_params_to_speculative` and `common_speculative_init_result`).
    pub(super) fn context(&self, main: &ContextParams) -> Result<ContextParams, Error> {
        let padded = main.sizes()?.n_ctx;
        Ok(ContextParams {
            // `sizes` refuses what padding would carry beyond 31 bits.
            n_ctx: u32::try_from(padded).unwrap_or(u32::MAX),
            n_outputs_max: main.n_seq_max,
            type_k: KvType::F16,
            type_v: KvType::F16,
            // Its own blocks that predict further tokens are not loaded.
            mtp: false,
            ..main.clone()
        })
    }

    /// What it makes a driver and its pools do.
    pub(super) fn workload(&self, main: &ContextParams) -> Result<Workload, Error> {
        Ok(Workload::of(&self.profile, &self.context(main)?.sizes()?))
    }

    pub(super) fn bytes(&self, gpu: Option<&Gpu>, main: &ContextParams) -> Result<CompanionBytes, Error> {
        let context = self.context(main)?;
        // Free bytes are what layers are split by; on one GPU there is nothing to split, and it may be full.
        let gpu = gpu.cloned().map(|gpu| Gpu { free: gpu.free.max(1), ..gpu });
        let gpus: Vec<&Gpu> = gpu.iter().collect();
        let layers = if gpus.is_empty() { 0 } else { self.profile.full_offload() };
        let estimate = Estimate::new(&self.profile, &gpus, &context)?;
        let (footprints, unsure) = estimate.with_uncertainty(&estimate.assignment(layers));
        // A backend that samples the draft's tokens itself, llama.cpp's default (common/common.h, `backend_sampling`),
        // takes on top their indices, and beside the logits that are returned probabilities, tokens and candidates
        // (llama-context.cpp, `output_reserve`).
        let n_vocab = u64::from(self.profile.hparams.n_vocab);
        let sampled = n_vocab.saturating_mul(16).saturating_mul(context.n_seq_max.into());
        let uncertain = |of_graph: u64| of_graph.saturating_add(sampled);
        Ok(CompanionBytes {
            gpu: footprints.gpus.first().copied().unwrap_or_default(),
            host: footprints.host,
            gpu_uncertainty: unsure.gpus.first().copied().map_or(0, uncertain),
            host_uncertainty: uncertain(unsure.host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Draft, Error};
    use crate::gguf::Builder;

    #[test]
    fn a_projector_is_no_draft_and_a_head_of_another_model_is_not_known() {
        let refused = |architecture: &str| Draft::read(&Builder::new(architecture).header().unwrap()).unwrap_err();
        let error = refused("clip");
        assert!(matches!(error, Error::WrongKind { .. }));
        assert_eq!(
            error.to_string(),
            "<builder>: the architecture is `clip`, but a draft is a text model; a projector is given as mmproj"
        );
        for head in ["eagle3", "dflash", "gemma4-assistant"] {
            assert!(matches!(refused(head), Error::Unread { .. }), "{head}");
        }
        assert!(matches!(refused("llama"), Error::Profile(_)));
    }
}
