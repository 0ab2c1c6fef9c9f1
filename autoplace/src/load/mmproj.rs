//! Loads the projector (mmproj) together with the model, in the memory that the plan reserves for it. Also finds
//! projectors in the folder of a model's file.
//!
//! In: a model that is loaded and judged, and its plan. Out: the same model with a [`MediaEncoder`], whose bytes are
//! compared with the plan. If memory runs short, model and projector are released and planned again.

use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_sys::{Backend, Device, MediaMemory, ProjectorBytes, ProjectorParams};

use super::devices::{by_name, free, named, of_plan};
use super::error::Stage;
use super::loaded::{Failure, Loaded};
use super::media::MediaEncoder;
use super::native;
use super::options::LoadOptions;
use super::placed::Prepared;
use super::progress::Progress;
use super::report::ProjectorReport;
use crate::gguf::{Header, Tensor};
use crate::machine::{Gpu, Machine};
use crate::memory::companion::CompanionRole;
use crate::memory::{Companion, CompanionBytes, ContextParams, Footprint};

impl LoadOptions {
    /// Loads the projector, if one was requested.
    pub(super) fn add_projector(
        &self,
        mut loaded: Loaded,
        prepared: &Prepared,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Some(path) = &self.mmproj else { return Ok(loaded) };
        let plan = &prepared.plan;
        let Some(planned) = plan.companions.iter().find(|one| one.role == CompanionRole::Mmproj) else {
            tracing::warn!("the plan leaves no room for the projector, so it is not loaded");
            return Ok(loaded);
        };
        self.enter(Stage::Projector, progress).map_err(Failure::at(Stage::Projector))?;
        let gpus = of_plan(plan).map_err(Failure::at(Stage::Check))?;
        let names = planned.gpu.iter().map(|gpu| (planned.device.as_deref(), gpu.as_str()));
        let devices = by_name(names).map_err(Failure::at(Stage::Check))?;
        let before = free(&devices);
        let image_max_tokens = self.largest_image(path).map_err(Failure::at(Stage::Check))?;
        let params = self.projector_params(devices.first(), image_max_tokens, &plan.context, &prepared.machine);
        let encoder = match MediaEncoder::load(&loaded.native.model, path, &params) {
            Ok(encoder) => encoder,
            Err(error) => {
                // Frees the model first, so that the memory of model and projector is free again.
                drop(loaded);
                return Err(Failure::at(Stage::Projector)(error).freed(plan, &gpus));
            }
        };
        let after = free(&devices);
        let [before, after] = [before, after].map(|free| free.first().copied().flatten());
        let shrunk = before.zip(after).map_or(0, |(before, after)| before.saturating_sub(after));
        let of = |is_gpu: bool| {
            let there = encoder.bytes.iter().filter(|bytes| (devices.first() == Some(&bytes.device)) == is_gpu);
            there.fold(Footprint::default(), |mut sum, bytes| {
                sum += Footprint::new(bytes.weights, 0, bytes.compute);
                sum
            })
        };
        let allocated = ProjectorReport { gpu: (!devices.is_empty()).then(|| of(true)), host: of(false) };
        let taken = allocated.gpu.map_or(0, |bytes| bytes.total()).max(shrunk);
        let note = self.judge_companion(planned, plan, taken)?;
        let report = Arc::make_mut(&mut loaded.placed.report);
        report.notes.push(note);
        if let Some(tokens) = image_max_tokens.filter(|_| self.image_max_tokens.is_none()) {
            let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            report.notes.push(format!(
                "{file} accepts images of up to {MAX_TOKENS_OF_YOUTU} tokens: larger images than {tokens} tokens are \
                 scaled down, unless --image-max-tokens sets another limit"
            ));
        }
        report.projector = Some(allocated);
        loaded.native.media = Some(Arc::new(encoder));
        Ok(loaded)
    }

    fn projector_params(
        &self,
        device: Option<&Device>,
        image_max_tokens: Option<u32>,
        context: &ContextParams,
        machine: &Machine,
    ) -> ProjectorParams {
        ProjectorParams {
            device: device.cloned(),
            n_threads: self.threads_on(machine),
            flash_attention: native::context(context).flash_attention,
            image_min_tokens: None,
            image_max_tokens,
        }
    }

    /// Maximum number of tokens of an image, if it differs from the number that llama.cpp takes from the projector's
    /// file.
    fn largest_image(&self, path: &Path) -> Result<Option<u32>, super::Error> {
        match self.image_max_tokens {
            None => Ok(default_largest_image(&Header::open(path)?)?),
            tokens => Ok(tokens),
        }
    }

    /// The projector of this load, as a companion for the plan. llama.cpp counts its bytes for each GPU of the machine
    /// that is present in this process, and for the host.
    pub(super) fn projector(&self, header: &Header, machine: &Machine) -> Result<Option<Companion>, super::Error> {
        let Some(path) = &self.mmproj else { return Ok(None) };
        if !llama_sys::has_media() {
            return Err(super::Error::NoMedia { mmproj: path.clone() });
        }
        let of_projector = Header::open(path)?;
        if let Some(reason) = rows_by_place(&of_projector)?.or(unequal_rows(&of_projector)?) {
            return Err(super::Error::Projector { mmproj: path.clone(), reason });
        }
        let mmproj = Companion::mmproj(&of_projector).map_err(crate::plan::Error::from)?;
        mmproj.compatible_with(header).map_err(crate::plan::Error::from)?;
        let image_max_tokens = self.largest_image(path)?;
        let mut mmproj = mmproj.max_image_tokens(image_max_tokens.unwrap_or(0));
        let present = Backend::init()?.devices();
        let here = |gpu: &Gpu| named(&present, gpu.device.as_deref()).cloned();
        let gpus = machine.gpus.iter().filter_map(|gpu| Some(Some(here(gpu)?)));
        let largest = of_projector.tensors().map(Tensor::bytes).max().unwrap_or(0);
        for device in gpus.chain([None]) {
            let params = self.projector_params(device.as_ref(), image_max_tokens, &self.request.params, machine);
            match MediaMemory::ask(path, &params) {
                Ok(memory) => {
                    let name = params.device.as_ref().map(Device::name);
                    let bytes = counted(&memory.bytes, params.device.as_ref(), largest);
                    mmproj = mmproj.counted(name.as_deref(), self.request.params.flash_attn, bytes);
                }
                // The planner's own upper bound is used instead of llama.cpp's count. If something is wrong with the
                // file, the load reports it.
                Err(error) => tracing::warn!("llama.cpp does not count the projector's bytes: {error}"),
            }
        }
        Ok(Some(mmproj))
    }
}

/// The bytes of a projector on this device, or on the host alone. Each tensor passes through the host's memory on its
/// way to a GPU, and the largest tensor has `largest` bytes. This happens before the host's compute buffers are in use
/// (clip.cpp, `load_tensors`).
fn counted(bytes: &[ProjectorBytes], device: Option<&Device>, largest: u64) -> CompanionBytes {
    let mut counted = CompanionBytes::default();
    for bytes in bytes {
        let footprint = Footprint::new(bytes.weights, 0, bytes.compute);
        match device {
            Some(device) if bytes.device == *device => counted.gpu += footprint,
            _ => counted.host += footprint,
        }
    }
    if device.is_some() {
        counted.host.compute = counted.host.compute.max(largest);
    }
    counted
}

/// The reason why a projector is not supported: the rows of an image depend on the tokens before it, but this crate
/// prepares images without their prompts, so that any text can use them again. DeepSeek 4 pads images so that its text
/// model compresses whole groups of four tokens (mtmd.cpp, `lead_pad`).
fn rows_by_place(header: &Header) -> Result<Option<String>, crate::gguf::Error> {
    let reason =
        || "the padding of its images depends on their place in the prompt, which is not supported yet".to_owned();
    Ok((projector_type(header)? == Some("deepseek4v")).then(reason))
}

/// The limit that llama.cpp sets for Youtu-VL (clip.cpp, `load_hparams`): images of 8,000 by 8,000 pixels.
const MAX_TOKENS_OF_YOUTU: u32 = 62_500;

/// The limit of most projectors that take images of any size, such as Qwen's.
const MAX_TOKENS: u32 = 4096;

/// Our own limit for an image's tokens. It replaces a limit of llama.cpp with which a load would reserve gigabytes for
/// images that hardly any context has room for.
fn default_largest_image(header: &Header) -> Result<Option<u32>, crate::gguf::Error> {
    Ok((projector_type(header)? == Some("youtuvl")).then_some(MAX_TOKENS))
}

/// The kind of the projector's image encoder.
fn projector_type(header: &Header) -> Result<Option<&str>, crate::gguf::Error> {
    Ok(header.str("clip.vision.projector_type")?.or(header.str("clip.projector_type")?))
}

/// Audio encoders that stack several rows into one (clip-model.h, `audio_has_stack_frames`).
const STACKED: [&str; 3] = ["ultravox", "voxtral", "meralion"];

/// The number of frames of a sound that are encoded at once. They last 30 seconds. The encoder makes one row from two
/// frames.
const FRAMES: u32 = 3000;

/// The reason why a projector is not supported: the number of rows that its encoder makes differs from the number that
/// llama.cpp computes for it. llama.cpp would then end the process (clip.cpp, `clip_encode`: "Invalid number of output
/// tokens"). The graph stacks rows and rounds up (`clip_graph::build_stack`); the count stacks frames and halves them
/// (`clip_n_output_tokens`).
fn unequal_rows(header: &Header) -> Result<Option<String>, crate::gguf::Error> {
    let projector = header.str("clip.audio.projector_type")?.or(header.str("clip.projector_type")?);
    let stack = header.u32("clip.audio.projector.stack_factor")?.unwrap_or(0);
    if stack == 0 || !projector.is_some_and(|projector| STACKED.contains(&projector)) {
        return Ok(None);
    }
    let (made, counted) = ((FRAMES / 2).div_ceil(stack), FRAMES.div_ceil(stack) / 2);
    let reason =
        || format!("with `clip.audio.projector.stack_factor` {stack} it computes {made} rows but counts {counted}");
    Ok((made != counted).then(reason))
}

/// What a projector encodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modalities {
    /// Images.
    pub images: bool,
    /// Sound.
    pub sound: bool,
}

impl Modalities {
    /// What the projector in this file encodes.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no GGUF file.
    pub fn of(projector: impl AsRef<Path>) -> Result<Self, crate::gguf::Error> {
        let header = Header::open(projector)?;
        let has = |kind: &str| Ok(header.bool(&format!("clip.has_{kind}_encoder"))?.unwrap_or(false));
        Ok(Self { images: has("vision")?, sound: has("audio")? })
    }
}

/// In words: `images and sound`.
impl fmt::Display for Modalities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.images, self.sound) {
            (true, true) => "images and sound",
            (true, false) => "images",
            (false, true) => "sound",
            (false, false) => "nothing",
        })
    }
}

/// The projector in the folder of a model's file: a file `*mmproj*.gguf` that llama.cpp would choose for this model. If
/// there are several, it is the largest one whose type is not F32. `None` if there is no such file, or if the folder
/// cannot be read.
pub fn mmproj_beside(model: impl AsRef<Path>) -> Option<PathBuf> {
    let model = model.as_ref();
    let header = Header::open(model).ok()?;
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        if !(name.contains("mmproj") && name.ends_with(".gguf")) {
            continue;
        }
        let Ok(mmproj) = Header::open(&path) else { continue };
        let fits = Companion::mmproj(&mmproj).is_ok_and(|mmproj| mmproj.compatible_with(&header).is_ok());
        if fits {
            let bytes: u64 = mmproj.tensors().map(Tensor::bytes).sum();
            found.push((name.contains("f32"), Reverse(bytes), path));
        }
    }
    found.into_iter().min().map(|(_, _, path)| path)
}

#[cfg(test)]
mod tests {
    use super::unequal_rows;
    use test_support::synthetic::mmproj;

    #[test]
    fn a_projector_with_miscounted_rows_is_found_before_it_is_loaded() {
        let reason = |name: &str| unequal_rows(&mmproj::named(name).header().unwrap()).unwrap();
        let ultravox = reason("Ultravox 0.5").unwrap();
        assert!(ultravox.contains("stack_factor` 8") && ultravox.ends_with("188 rows but counts 187"), "{ultravox}");
        assert_eq!([reason("Small Ultravox"), reason("LLaVA 1.5")], [None, None]);
    }
}
