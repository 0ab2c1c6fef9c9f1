//! The projector (mmproj), loaded beside the model in the room that the plan left for it; and projectors that lie
//! beside a model's file.
//!
//! In: a model that is loaded and judged, and its plan. Out: the same with a [`MediaEncoder`], whose bytes are compared
//! with the plan. If memory runs short, both are released and planned again.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_sys::ProjectorParams;

use super::devices::{by_name, free, of_plan};
use super::error::Stage;
use super::loaded::{Failure, Loaded};
use super::media::MediaEncoder;
use super::native;
use super::options::LoadOptions;
use super::placed::Prepared;
use super::progress::Progress;
use crate::gguf::Header;
use crate::memory::Companion;
use crate::memory::companion::CompanionRole;

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
        let params = ProjectorParams {
            device: devices.first().cloned(),
            n_threads: self.threads_on(&prepared.machine),
            flash_attention: native::context(&plan.context).flash_attention,
            image_min_tokens: None,
            image_max_tokens: self.image_max_tokens,
        };
        let encoder = match MediaEncoder::load(&loaded.native.model, path, &params) {
            Ok(encoder) => encoder,
            Err(error) => {
                // Frees the model first, so that the memory of both is free again.
                drop(loaded);
                return Err(Failure::at(Stage::Projector)(error).freed(plan, &gpus));
            }
        };
        let after = free(&devices);
        let [before, after] = [before, after].map(|free| free.first().copied().flatten());
        let taken = before.zip(after).map_or(0, |(before, after)| before.saturating_sub(after));
        let note = self.judge_companion(planned, plan, taken)?;
        Arc::make_mut(&mut loaded.placed.report).notes.push(note);
        loaded.native.media = Some(Arc::new(encoder));
        Ok(loaded)
    }

    /// The projector of this load as a companion of its plan.
    pub(super) fn projector(&self, header: &Header) -> Result<Option<Companion>, super::Error> {
        let Some(path) = &self.mmproj else { return Ok(None) };
        if !llama_sys::has_media() {
            return Err(super::Error::NoMedia { mmproj: path.clone() });
        }
        let of_projector = Header::open(path)?;
        if let Some(reason) = unequal_rows(&of_projector)? {
            return Err(super::Error::Projector { mmproj: path.clone(), reason });
        }
        let mmproj = Companion::mmproj(&of_projector).map_err(crate::plan::Error::from)?;
        mmproj.compatible_with(header).map_err(crate::plan::Error::from)?;
        Ok(Some(mmproj.max_image_tokens(self.image_max_tokens.unwrap_or(0))))
    }
}

/// Encoders whose rows are stacked (clip-model.h, `audio_has_stack_frames`).
const STACKED: [&str; 3] = ["ultravox", "voxtral", "meralion"];

/// Frames of a sound that are encoded at once: 30 seconds. The encoder makes one row of two.
const FRAMES: u32 = 3000;

/// Why an encoder makes another number of rows than llama.cpp counts, which ends the process (clip.cpp,
/// `clip_encode`: "Invalid number of output tokens"). The graph stacks rows and rounds up
/// (`clip_graph::build_stack`); the count stacks frames and halves them (`clip_n_output_tokens`).
fn unequal_rows(header: &Header) -> Result<Option<String>, crate::gguf::Error> {
    let projector = header.str("clip.audio.projector_type")?.or(header.str("clip.projector_type")?);
    let stack = header.u32("clip.audio.projector.stack_factor")?.unwrap_or(0);
    if stack == 0 || !projector.is_some_and(|projector| STACKED.contains(&projector)) {
        return Ok(None);
    }
    let (made, counted) = ((FRAMES / 2).div_ceil(stack), FRAMES.div_ceil(stack) / 2);
    let reason =
        || format!("with `clip.audio.projector.stack_factor` {stack} it makes {made} rows and counts {counted}");
    Ok((made != counted).then(reason))
}

/// The projector that lies beside a model: a file `mmproj*.gguf` in its folder that llama.cpp would take for it, the
/// largest of several that is not of F32. `None` if there is none, or the folder cannot be read.
pub fn mmproj_beside(model: impl AsRef<Path>) -> Option<PathBuf> {
    let model = model.as_ref();
    let header = Header::open(model).ok()?;
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        if !(name.starts_with("mmproj") && name.ends_with(".gguf")) {
            continue;
        }
        let Ok(mmproj) = Header::open(&path) else { continue };
        let fits = Companion::mmproj(&mmproj).is_ok_and(|mmproj| mmproj.compatible_with(&header).is_ok());
        if fits {
            let bytes: u64 = mmproj.tensors().map(crate::gguf::Tensor::bytes).sum();
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
    fn a_projector_whose_rows_llama_cpp_counts_wrongly_is_known_before_it_is_loaded() {
        let reason = |name: &str| unequal_rows(&mmproj::named(name).header().unwrap()).unwrap();
        let ultravox = reason("Ultravox 0.5").unwrap();
        assert!(ultravox.contains("stack_factor` 8") && ultravox.ends_with("188 rows and counts 187"), "{ultravox}");
        assert_eq!([reason("Small Ultravox"), reason("LLaVA 1.5")], [None, None]);
    }
}
