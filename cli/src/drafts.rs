//! Options of a draft model. If an option is not given, the plan chooses it.

use autoplace::memory::KvType;
use autoplace::memory::companion::DraftOptions;
use autoplace::plan::GpuLayers;

use crate::values::gpu_layers;

/// Options of a draft model: its cache, its layers, its device.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Draft tokens")]
pub(crate) struct DraftOptionArgs {
    /// Type of the keys of the draft model [default: f16]
    #[arg(long, value_name = "TYPE")]
    draft_cache_type_k: Option<KvType>,
    /// Type of the values of the draft model [default: f16]
    #[arg(long, value_name = "TYPE")]
    draft_cache_type_v: Option<KvType>,
    /// Layers of the draft model on a GPU, the output layer included; 0 is the host; `auto` is all layers, or none if
    /// no GPU has room for all [default: auto]
    #[arg(long, value_name = "N|all|auto", value_parser = gpu_layers, allow_hyphen_values = true)]
    draft_ngl: Option<GpuLayers>,
    /// The device of the draft model, as `devices` lists it, or `none` for the host [default: the device on which it
    /// slows the model least]
    #[arg(long, value_name = "NAME|none")]
    draft_device: Option<String>,
}

impl DraftOptionArgs {
    pub(crate) fn options(&self) -> DraftOptions {
        let mut options = DraftOptions::default();
        (options.type_k, options.type_v) = (self.draft_cache_type_k, self.draft_cache_type_v);
        options.n_gpu_layers = self.draft_ngl.and_then(number);
        options.device = self.draft_device.clone();
        options
    }

    /// These options, written as llama.cpp's flags.
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

/// The number of layers; with `None`, the plan chooses it.
const fn number(layers: GpuLayers) -> Option<u32> {
    match layers {
        GpuLayers::Exactly(layers) | GpuLayers::AtMost(layers) => Some(layers),
        GpuLayers::All => Some(u32::MAX),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftOptionArgs, GpuLayers, KvType, gpu_layers, number};

    #[test]
    fn options_of_a_draft_become_flags_of_llama_cpp() {
        assert_eq!(DraftOptionArgs::default().words(), [""; 0]);
        let args = DraftOptionArgs {
            draft_cache_type_k: Some(KvType::Q8_0),
            draft_cache_type_v: None,
            draft_ngl: Some(GpuLayers::Exactly(5)),
            draft_device: Some("CUDA1".to_owned()),
        };
        assert_eq!(args.words(), ["-ctkd", "q8_0", "-ngld", "5", "-devd", "CUDA1"]);
        assert_eq!(DraftOptionArgs { draft_ngl: Some(GpuLayers::All), ..Default::default() }.words(), ["-ngld", "all"]);
    }

    #[test]
    fn layers_are_read_as_llama_cpp_reads_them() {
        let read = ["auto", "-1", "all", "-2", "0", "7"].map(|text| number(gpu_layers(text).unwrap()));
        assert_eq!(read, [None, None, Some(u32::MAX), Some(u32::MAX), Some(0), Some(7)]);
        assert!(["", "many", "99999999999"].iter().all(|text| gpu_layers(text).is_err()));
    }
}
