//! A draft model. Its memory is the estimate of a normal model.

use crate::gguf::Header;
use crate::machine::Gpu;
use crate::memory::{ContextParams, Estimate, KvType, PeakSizes};
use crate::profile::ModelProfile;

use super::bytes::CompanionBytes;
use super::error::{Error, file};
use super::options::DraftOptions;

/// Architectures of drafts that receive the main model's hidden states (common/speculative.cpp,
/// `common_speculative_type`). Their contexts return more than logits.
const HEADS: &[&str] = &["eagle3", "dflash", "gemma4-assistant"];

/// A draft, with the header for its vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) header: Header,
    pub(super) profile: ModelProfile,
    pub(super) options: DraftOptions,
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
            let what = format!("a draft model of architecture `{architecture}`");
            return Err(Error::Unread { file: file(header), what });
        }
        let options = DraftOptions::default();
        Ok(Self { header: header.clone(), profile: ModelProfile::from_header(header)?, options })
    }

    /// The parameters of the draft's context, given those of the main model's context (common/speculative.cpp,
    /// `common_base_params_to_speculative` and `common_speculative_init_result`).
    pub(super) fn context(&self, main: &ContextParams) -> Result<ContextParams, Error> {
        let padded = main.sizes()?.n_ctx;
        Ok(ContextParams {
            // If the padded number needs more than 31 bits, `sizes` rejects the context.
            n_ctx: u32::try_from(padded).unwrap_or(u32::MAX),
            n_outputs_max: main.n_seq_max,
            type_k: self.options.type_k.unwrap_or(KvType::F16),
            type_v: self.options.type_v.unwrap_or(KvType::F16),
            // llama.cpp does not load the draft's own prediction blocks.
            mtp: false,
            // common/speculative.cpp, `common_base_params_to_speculative`.
            moe_cache_size: 0,
            ..main.clone()
        })
    }

    /// The draft's contribution to the headroom.
    pub(super) fn peak_sizes(&self, main: &ContextParams) -> Result<PeakSizes, Error> {
        Ok(PeakSizes::new(&self.profile, &self.context(main)?.sizes()?))
    }

    pub(super) fn bytes(&self, gpu: Option<&Gpu>, main: &ContextParams) -> Result<CompanionBytes, Error> {
        let context = self.context(main)?;
        // An estimate splits layers by free bytes, which must not all be 0. With one GPU there is nothing to split, but
        // the GPU may be full, so it gets at least one byte.
        let gpu = gpu.cloned().map(|gpu| Gpu { free: gpu.free.max(1), ..gpu });
        let gpus: Vec<&Gpu> = gpu.iter().collect();
        let all = self.profile.full_offload();
        let layers = if gpus.is_empty() { 0 } else { self.options.n_gpu_layers.map_or(all, |layers| layers.min(all)) };
        let estimate = Estimate::new(&self.profile, &gpus, &context)?;
        let (footprints, unsure) = estimate.with_uncertainty(&estimate.assignment(layers));
        // By default the backend samples the draft's tokens (common/common.h, `backend_sampling`). In addition to the
        // returned logits, the output buffer then contains probabilities, tokens, candidates and their indices
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
    fn projectors_and_heads_of_other_models_are_refused_as_drafts() {
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
