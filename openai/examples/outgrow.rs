//! Moves a conversation from a local model to a server (vLLM, llama-server, `autoplace serve`) by changing one line:
//!
//! ```sh
//! cargo run --release --features client --example outgrow -- http://127.0.0.1:8080/v1 "Why is the sky blue?"
//! ```
use std::io::Write;

use autoplace::chat::ReplyPart;
use autoplace_openai::Endpoint;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(place), Some(question)) = (args.next(), args.next()) else {
        return Err("usage: outgrow URL QUESTION".into());
    };
    // let model = autoplace::Model::load(place)?;
    let model = Endpoint::new(place);
    let mut chat = model.chat()?.system("Be brief.").with(|generate| generate.temp(0.7).max_tokens(200));
    for part in &mut chat.say(question)? {
        match part? {
            ReplyPart::Content(text) => print!("{text}"),
            ReplyPart::Reasoning(thought) => eprint!("{thought}"),
            ReplyPart::ToolCall(call) => println!("{}({})", call.name, call.arguments),
        }
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
