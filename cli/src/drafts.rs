//! How a draft model is loaded, where that is not left to the plan.

use autoplace::memory::KvType;
use autoplace::memory::companion::DraftOptions;

/// What is said of a draft model: its cache, its layers, its device.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Draft tokens")]
pub(crate) struct DraftOptionArgs {
    /// Type of the keys of the draft model [default: f16]
    #[arg(long, value_name = "TYPE")]
    draft_cache_type_k: Option<KvType>,
    /// Type of the values of the draft model [default: f16]
    #[arg(long, value_name = "TYPE")]
    draft_cache_type_v: Option<KvType>,
    /// Layers of the draft model on a GPU, the output layer counted; 0 is the host [default: auto, all of them, or none
    /// where no GPU has room for all]
    #[arg(long, value_name = "N|all|auto", value_parser = layers, allow_hyphen_values = true)]
    draft_ngl: Option<Layers>,
    /// The device of the draft model, as `devices` lists it, or `none` for the host [default: where it costs the model
    /// least]
    #[arg(long, value_name = "NAME|none")]
    draft_device: Option<String>,
}

/// What `--draft-ngl` says; `None` is left to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layers(Option<u32>);

impl DraftOptionArgs {
    pub(crate) fn options(&self) -> DraftOptions {
        let mut options = DraftOptions::default();
        (options.type_k, options.type_v) = (self.draft_cache_type_k, self.draft_cache_type_v);
        options.n_gpu_layers = self.draft_ngl.and_then(|layers| layers.0);
        options.device = self.draft_device.clone();
        options
    }

    /// The same as flags of llama.cpp.
    pub(crate) fn words(&self) -> Vec<String> {
        let ty = |ty: KvType| ty.tensor_type().name().to_lowercase();
        let options = self.options();
        let words = [
            ("-ctkd", options.type_k.map(ty)),
            ("-ctvd", options.type_v.map(ty)),
            (
                "-ngld",
                options
                    .n_gpu_layers
                    .map(|layers| if layers == u32::MAX { "all".to_owned() } else { layers.to_string() }),
            ),
            ("-devd", options.device),
        ];
        words.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten().collect()
    }
}

/// As common/arg.cpp reads `--spec-draft-ngl`: -1 is `auto`, and less is `all`.
fn layers(text: &str) -> Result<Layers, String> {
    match (text, text.parse::<i64>()) {
        ("auto", _) | (_, Ok(-1)) => Ok(Layers(None)),
        ("all", _) | (_, Ok(..-1)) => Ok(Layers(Some(u32::MAX))),
        (_, Ok(layers)) => u32::try_from(layers)
            .map(|layers| Layers(Some(layers)))
            .map_err(|_| "so many layers has no model".to_owned()),
        _ => Err("a number of layers, `all` or `auto` can be".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftOptionArgs, KvType, Layers, layers};

    #[test]
    fn what_is_said_of_a_draft_is_said_to_llama_cpp_in_its_words() {
        assert_eq!(DraftOptionArgs::default().words(), [""; 0]);
        let args = DraftOptionArgs {
            draft_cache_type_k: Some(KvType::Q8_0),
            draft_cache_type_v: None,
            draft_ngl: Some(Layers(Some(5))),
            draft_device: Some("CUDA1".to_owned()),
        };
        assert_eq!(args.words(), ["-ctkd", "q8_0", "-ngld", "5", "-devd", "CUDA1"]);
        assert_eq!(
            DraftOptionArgs { draft_ngl: Some(Layers(Some(u32::MAX))), ..Default::default() }.words(),
            ["-ngld", "all"]
        );
    }

    #[test]
    fn layers_are_read_as_llama_cpp_reads_them() {
        let read = ["auto", "-1", "all", "-2", "0", "7"].map(|text| layers(text).unwrap().0);
        assert_eq!(read, [None, None, Some(u32::MAX), Some(u32::MAX), Some(0), Some(7)]);
        assert!(["", "many", "99999999999"].iter().all(|text| layers(text).is_err()));
    }
}
