//! A folder of pictures: the model describes them, as many at a time as the engine has sequences.

use std::fs;
use std::path::Path;

use anyhow::Result;
use autoplace::chat::ChatTemplate;
use autoplace::generate::ChatStream;
use autoplace::{Engine, Image, Model, Part};

pub fn run(path: &Path, projector: &Path, folder: &Path) -> Result<()> {
    let model = Model::builder(path).mmproj(projector).parallel(4, 1024).load()?;
    let engine = Engine::new(&model)?;
    let mut asked = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        match Image::open(&file) {
            Err(error) => println!("left out: {error}"), // no picture, or one that exceeds a limit
            Ok(image) => {
                let template = ChatTemplate::family("chatml")?; // or `engine.chat()`: the model's own
                let chat = Box::new(engine.chat_with(template).max_tokens(40));
                let question = [Part::image(image), Part::text("Describe this picture in one sentence.")];
                asked.push((file, ChatStream::say(chat, question)?)); // waits while the queue is full
            }
        }
    }
    for (file, answer) in asked {
        println!("{}: {}", file.display(), answer.text()?);
    }
    Ok(())
}
