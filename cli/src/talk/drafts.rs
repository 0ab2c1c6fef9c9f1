//! What drafts tokens for the model.

use std::path::PathBuf;

use autoplace::ModelBuilder;
use autoplace::generate::{Generate, Speculation};
use clap::value_parser;

/// Speculative decoding; at most one of its kinds.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Draft tokens")]
pub(super) struct DraftArgs {
    /// GGUF file of a small model of the same vocabulary, which drafts
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mtp", "prompt_lookup"])]
    draft_model: Option<PathBuf>,
    /// The model's own block that predicts further tokens drafts
    #[arg(long, conflicts_with = "prompt_lookup")]
    mtp: bool,
    /// What followed the same tokens before, in the prompt or in the answer, is the draft
    #[arg(long)]
    prompt_lookup: bool,
    /// Tokens that are drafted at once, at most [default: 8 of a draft model, 3 of the model's own block, 10 of the
    /// text]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64))]
    draft_max: Option<u32>,
    /// How likely the next draft token has to be
    #[arg(long, value_name = "P")]
    draft_p_min: Option<f32>,
}

impl DraftArgs {
    pub(super) fn load(&self, mut builder: ModelBuilder) -> ModelBuilder {
        if let Some(file) = &self.draft_model {
            builder = builder.draft(file);
        }
        if self.mtp {
            builder = builder.mtp(true);
        }
        match self.speculation() {
            Speculation::Off => builder,
            Speculation::PromptLookup { draft_max, .. } => builder.draft_max(draft_max),
            _ => self.draft_max.into_iter().fold(builder, ModelBuilder::draft_max),
        }
    }

    pub(super) fn generate(&self, generate: Generate) -> Generate {
        generate.speculate(self.speculation())
    }

    fn speculation(&self) -> Speculation {
        let mut speculation = match (&self.draft_model, self.mtp, self.prompt_lookup) {
            (Some(_), ..) => Speculation::draft_model(),
            (_, true, _) => Speculation::mtp(),
            (_, _, true) => Speculation::prompt_lookup(),
            _ => Speculation::Off,
        };
        match &mut speculation {
            Speculation::DraftModel { draft_max, p_min } | Speculation::Mtp { draft_max, p_min } => {
                *draft_max = self.draft_max.unwrap_or(*draft_max);
                *p_min = self.draft_p_min.unwrap_or(*p_min);
            }
            Speculation::PromptLookup { draft_max, .. } => *draft_max = self.draft_max.unwrap_or(*draft_max),
            _ => {}
        }
        speculation
    }
}
