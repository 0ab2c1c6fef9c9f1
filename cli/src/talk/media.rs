//! Arguments for images and sound: the files of a message, and the model's projector.

use std::error::Error;
use std::path::{Path, PathBuf};

use autoplace::chat::Media;
use autoplace::generate::Prompt;
use autoplace::{Model, ModelBuilder, llama_sys};
use clap::value_parser;

use super::source::Wanted;

/// The projector.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Images and sound")]
pub(super) struct ProjectorArgs {
    /// The projector (mmproj) with which the model reads images and sounds: a file, or hf:OWNER/NAME[:QUANT][@REVISION]
    /// [default: a file mmproj*.gguf beside the model, or the best one in its repository that fits]
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj")]
    mmproj: Option<PathBuf>,
    /// Loads no projector
    #[arg(long)]
    no_mmproj: bool,
    /// Maximum tokens of an image, if the projector accepts images of any size
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    image_max_tokens: Option<u32>,
}

impl ProjectorArgs {
    /// Which projector to look for. `looks` says whether to look for one in the model's folder. A prompt without images
    /// does not need that.
    pub(super) fn wanted(&self, looks: bool) -> Wanted {
        match &self.mmproj {
            Some(path) => Wanted::At(path.clone()),
            None if looks && !self.no_mmproj && llama_sys::has_media() => Wanted::Beside,
            None => Wanted::Nothing,
        }
    }

    /// Adds the projector that was found to the load.
    pub(super) fn set(&self, builder: ModelBuilder, projector: Option<&Path>) -> ModelBuilder {
        self.limits().set(projector.into_iter().fold(builder, ModelBuilder::mmproj))
    }

    pub(super) const fn limits(&self) -> ImageLimit {
        ImageLimit { max_tokens: self.image_max_tokens }
    }
}

/// The maximum size of images. It applies to every projector.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageLimit {
    max_tokens: Option<u32>,
}

impl ImageLimit {
    pub(super) fn set(self, builder: ModelBuilder) -> ModelBuilder {
        self.max_tokens.into_iter().fold(builder, ModelBuilder::image_max_tokens)
    }
}

/// Files for the prompt, or for a chat's first message.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Images and sound")]
pub(super) struct MediaArgs {
    /// An image for the prompt, or for a chat's first message (PNG, JPEG, WebP, GIF or BMP); repeat for several
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// A sound for the prompt, or for a chat's first message (WAV, MP3, FLAC or Ogg Vorbis); repeat for several
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
}

impl MediaArgs {
    pub(super) fn is_empty(&self) -> bool {
        self.image.is_empty() && self.audio.is_empty()
    }

    /// The files in the order in which a message has them: first images, then sounds.
    pub(super) fn read(&self) -> Result<Vec<(PathBuf, Media)>, Box<dyn Error>> {
        let images = self.image.iter().map(|path| image(path));
        let sounds = self.audio.iter().map(|path| sound(path));
        let paths = self.image.iter().chain(&self.audio).cloned();
        paths.zip(images.chain(sounds)).map(|(path, media)| Ok((path, media?))).collect()
    }
}

/// The ending of a file's name, in small letters.
fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// The image or sound in a file; `None` if the ending of the file's name is not that of an image or a sound.
pub(super) fn named(path: &Path) -> Option<Result<Media, Box<dyn Error>>> {
    match &*ending(path) {
        "png" | "jpg" | "jpeg" | "webp" | "gif" | "bmp" => Some(image(path)),
        "wav" | "mp3" | "flac" | "ogg" => Some(sound(path)),
        _ => None,
    }
}

/// A line about a file, with its size and its number of tokens.
pub(super) fn line(path: &Path, media: &Media, model: &Model) -> String {
    // If the model has no projector, or runs in a worker, the number of tokens is not known.
    let tokens = model.count_tokens(Prompt::tokens([]).then_media(media.clone())).ok();
    let tokens = tokens.map_or_else(String::new, |tokens| format!(", {tokens} tokens"));
    format!("{}: {media}{tokens}", path.display())
}

#[cfg(feature = "media")]
fn image(path: &Path) -> Result<Media, Box<dyn Error>> {
    check_is_file(path)?;
    Ok(autoplace::Image::open(path)?.into())
}

#[cfg(feature = "media")]
fn sound(path: &Path) -> Result<Media, Box<dyn Error>> {
    check_is_file(path)?;
    Ok(autoplace::Sound::open(path)?.into())
}

/// Refuses an address, with a better message than that there is no such file.
#[cfg(feature = "media")]
fn check_is_file(path: &Path) -> Result<(), String> {
    let is_address = ["http://", "https://", "data:"].iter().any(|scheme| path.to_string_lossy().starts_with(scheme));
    if !is_address || path.exists() {
        return Ok(());
    }
    Err(format!("{}: images and sounds are files; nothing is fetched from an address", path.display()))
}

#[cfg(not(feature = "media"))]
fn image(path: &Path) -> Result<Media, Box<dyn Error>> {
    Err(format!("{}: this program was built without images and sound (feature `media`)", path.display()).into())
}

#[cfg(not(feature = "media"))]
use self::image as sound;
