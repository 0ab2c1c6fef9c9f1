//! LoRA adapters and control vectors on the command line, with llama.cpp's flags.

use std::error::Error;
use std::path::{Path, PathBuf};

use autoplace::ModelBuilder;
use autoplace::gguf::Header;
use autoplace::load::NativeProbe;
use autoplace::profile::{ControlVector, Lora, ModelProfile};

#[derive(Debug, clap::Args)]
pub(crate) struct AdapterArgs {
    /// Applies a LoRA adapter; repeat for several
    #[arg(long, value_name = "FILE")]
    lora: Vec<PathBuf>,
    /// Applies a LoRA adapter with a scale; repeat for several
    #[arg(long, value_name = "FILE:SCALE", value_parser = scaled)]
    lora_scaled: Vec<(PathBuf, f32)>,
    /// Adds a control vector to the layers' outputs; repeat for several
    #[arg(long, value_name = "FILE")]
    control_vector: Vec<PathBuf>,
    /// Adds a control vector with a scale; repeat for several
    #[arg(long, value_name = "FILE:SCALE", value_parser = scaled)]
    control_vector_scaled: Vec<(PathBuf, f32)>,
    /// First and last layer for control vectors [default: all but layer 0]
    #[arg(long, value_name = "FIRST-LAST", value_parser = range)]
    control_vector_layer_range: Option<(u32, u32)>,
}

impl AdapterArgs {
    /// The adapters with their scales. An adapter's number is its place in this order.
    fn lora(&self) -> impl Iterator<Item = (&Path, f32)> {
        let whole = self.lora.iter().map(|file| (file.as_path(), 1.0));
        whole.chain(self.lora_scaled.iter().map(|(file, scale)| (file.as_path(), *scale)))
    }

    fn control_vectors(&self) -> impl Iterator<Item = (&Path, f32)> {
        let whole = self.control_vector.iter().map(|file| (file.as_path(), 1.0));
        whole.chain(self.control_vector_scaled.iter().map(|(file, scale)| (file.as_path(), *scale)))
    }

    /// Adds the adapters and control vectors to a load.
    pub(crate) fn load(&self, builder: ModelBuilder) -> ModelBuilder {
        let builder = self.lora().fold(builder, |builder, (file, scale)| builder.lora(file, scale));
        let vectors = self.control_vectors();
        let builder = vectors.fold(builder, |builder, (file, scale)| builder.control_vector(file, scale));
        match self.control_vector_layer_range {
            Some((first, last)) => builder.control_vector_layers(first..=last),
            None => builder,
        }
    }

    /// Adds the adapters and control vectors to a model's profile.
    pub(crate) fn beside(&self, mut profile: ModelProfile) -> Result<ModelProfile, Box<dyn Error>> {
        for (file, _) in self.lora() {
            profile = profile.with_lora(&Lora::from_header(&Header::open(file)?)?)?;
        }
        for (file, _) in self.control_vectors() {
            ControlVector::from_header(&Header::open(file)?, &profile)?;
            profile = profile.with_control_vector();
        }
        Ok(profile)
    }

    /// Adds the adapters and control vectors to a probe.
    pub(crate) fn probe(&self, probe: NativeProbe) -> NativeProbe {
        let probe = self.lora().fold(probe, |probe, (file, _)| probe.lora(file));
        if self.control_vectors().next().is_some() { probe.control_vector() } else { probe }
    }

    /// The same adapters and control vectors, written as arguments of llama.cpp's programs; `None` if a path is not
    /// valid text.
    pub(crate) fn words(&self) -> Option<Vec<String>> {
        let mut words = Vec::new();
        let files = self.lora().map(|file| ("--lora", file));
        for (flag, (file, scale)) in files.chain(self.control_vectors().map(|file| ("--control-vector", file))) {
            let file = file.to_str()?;
            match scale {
                1.0 => words.extend([flag.to_owned(), file.to_owned()]),
                scale => words.extend([format!("{flag}-scaled"), format!("{file}:{scale}")]),
            }
        }
        if let Some((first, last)) = self.control_vector_layer_range {
            words.extend(["--control-vector-layer-range".to_owned(), first.to_string(), last.to_string()]);
        }
        Some(words)
    }
}

/// Parses `FILE:SCALE` like `--lora-scaled` in common/arg.cpp. A Windows path contains a colon too.
fn scaled(text: &str) -> Result<(PathBuf, f32), String> {
    let split = text.rsplit_once(':').and_then(|(file, scale)| Some((file.into(), scale.parse().ok()?)));
    split.ok_or_else(|| format!("`{text}` is not FILE:SCALE, such as style.gguf:0.5"))
}

/// Parses `10-20` or `10,20`. llama.cpp's flag takes two words, which arrive here joined by a comma.
fn range(text: &str) -> Result<(u32, u32), String> {
    let split = text.split_once(['-', ',']);
    let range = split.and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
    range.ok_or_else(|| format!("`{text}` is not a range of layers, such as 10-20"))
}
