//! A command-line tool: shows the placement before it loads the model, prints the text as it arrives, and ends properly
//! on Ctrl-C.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path) -> Result<()> {
    let builder = Model::builder(path).n_ctx(1024);
    println!("{}", builder.plan()?); // the placement and its reasons; nothing is loaded
    let model = builder.load()?;
    let mut stream = model.generate("Once upon a time").temp(0.7).seed(7).max_tokens(24).stream()?;
    let stop = stream.abort_handle();
    // ctrlc::set_handler(move || stop.abort())?;
    drop(stop);
    for piece in &mut stream {
        print!("{}", piece?); // whole characters, never a part of one
        stdout().flush()?;
    }
    println!("\n{} ({:?})", stream.statistics(), stream.finish_reason());
    Ok(())
}
