//! A sound: the model writes down what is said, and then sums it up.

use std::path::Path;

use anyhow::Result;
use autoplace::chat::ChatTemplate;
use autoplace::{Model, Part, Sound};

pub fn run(path: &Path, projector: &Path, file: &Path) -> Result<()> {
    let model = Model::builder(path).mmproj(projector).n_ctx(2048).load()?;
    let sound = Sound::open(file)?; // WAV, MP3, FLAC or Ogg Vorbis
    println!("{}: {:.1} s", file.display(), sound.duration().as_secs_f64());
    let template = ChatTemplate::family("chatml")?; // or `model.chat()`: the model's own
    let mut chat = model.chat_with(template).with(|generate| generate.temp(0.0).max_tokens(400));
    let said = chat.say([Part::audio(sound), Part::text("Write down what is said, word for word.")])?.text()?;
    println!("{said}");
    // The sound is neither encoded nor computed again.
    println!("{}", chat.say("Sum it up in one sentence.")?.text()?);
    Ok(())
}
