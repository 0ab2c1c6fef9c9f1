//! A server: eight requests at once on one model, each with its own context. The ninth waits, and a full queue refuses
//! requests. `autoplace-openai` adds OpenAI's API to the same engine.

use std::path::Path;
use std::thread;

use anyhow::Result;
use autoplace::generate::Shutdown;
use autoplace::{Engine, Model};

pub fn run(path: &Path) -> Result<()> {
    let model = Model::builder(path).parallel(8, 256).load()?;
    println!("{}", model.placement()); // 8 sequences of 256 tokens
    let engine = Engine::builder(&model).queue(64).start()?;
    thread::scope(|clients| {
        for n in 0..12 {
            let (engine, model) = (&engine, &model);
            clients.spawn(move || -> Result<()> {
                let request = model.generate(format!("{n}. And the king said")).max_tokens(12);
                // In a task, use `submit_async`. `try_submit` refuses instead of waiting. Dropping a stream ends its
                // text.
                let (text, statistics) = engine.submit(request)?.into_text()?;
                println!("{n}: {text:?}, {statistics}");
                Ok(())
            });
        }
    });
    println!("{:?}", engine.metrics());
    engine.shutdown(Shutdown::Finish);
    Ok(())
}
