//! The arguments that choose how tokens are drafted.

use std::path::PathBuf;

use autoplace::ModelBuilder;
use autoplace::generate::{GenerateRequest, Speculation};
use autoplace::memory::companion::DraftOptions;
use clap::value_parser;

use crate::drafts::DraftOptionArgs;

/// Speculative decoding, with at most one source.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Draft tokens")]
pub(super) struct DraftArgs {
    /// GGUF file of a small draft model with the same vocabulary
    #[arg(long = "draft-model", id = "draft_file", value_name = "FILE", conflicts_with_all = ["mtp", "prompt_lookup"])]
    draft_model: Option<PathBuf>,
    #[command(flatten)]
    options: DraftOptionArgs,
    /// Drafts with the model's own block for predicting further tokens (MTP)
    #[arg(long, conflicts_with = "prompt_lookup")]
    mtp: bool,
    /// Drafts the tokens that followed the same last tokens earlier, in the prompt or the answer
    #[arg(long)]
    prompt_lookup: bool,
    /// Maximum number of draft tokens at once [default: 8 for a draft model, 3 for the model's own block, 10 for
    /// --prompt-lookup]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64))]
    draft_max: Option<u32>,
    /// Minimum probability of the next draft token
    #[arg(long, value_name = "P")]
    draft_p_min: Option<f32>,
}

impl DraftArgs {
    /// Fails if options for a draft model are given, but no draft model.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self.draft_model.is_none() && self.options.options() != DraftOptions::default() {
            true => Err("options of a draft model need a draft model: --draft-model FILE"),
            false => Ok(()),
        }
    }

    /// A note on options that have no effect.
    pub(super) fn without_effect(&self) -> Option<String> {
        let is_model = self.draft_model.is_some() || self.mtp;
        let drafts = is_model || self.prompt_lookup;
        let given = [
            self.draft_max.filter(|_| !drafts).map(|most| format!("--draft-max {most}")),
            self.draft_p_min.filter(|_| !is_model).map(|p_min| format!("--draft-p-min {p_min}")),
        ];
        let given: Vec<String> = given.into_iter().flatten().collect();
        let lacking = if drafts { "--prompt-lookup knows no probabilities" } else { "nothing drafts tokens" };
        (!given.is_empty()).then(|| format!("{} has no effect: {lacking}", given.join(" ")))
    }

    pub(super) fn load(&self, mut builder: ModelBuilder) -> ModelBuilder {
        if let Some(file) = &self.draft_model {
            builder = builder.draft(file).draft_options(self.options.options());
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

    pub(super) fn generate(&self, generate: GenerateRequest) -> GenerateRequest {
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
