//! A desktop application: the window does not wait for the model, and a button stops an answer. A Tauri application
//! would `manage` this state; `Model`, `Engine` and `AbortHandle` are `Send` and `Sync`.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::Result;
use autoplace::AbortHandle;
use autoplace::Model;

#[derive(Default)]
struct State {
    model: Mutex<Option<Model>>,
    stop: Mutex<Option<AbortHandle>>,
}

/// A command, which returns at once. The text arrives as events.
fn ask(state: &Arc<State>, prompt: String, events: Sender<String>) {
    let state = Arc::clone(state);
    thread::spawn(move || -> Result<()> {
        let model = state.model.lock().unwrap().clone(); // a handle: the lock is free while it generates
        let stream = model.unwrap().generate(prompt).max_tokens(16).stream()?;
        *state.stop.lock().unwrap() = Some(stream.abort_handle());
        for piece in stream {
            events.send(piece?)?;
        }
        Ok(())
    });
}

pub fn run(path: &Path) -> Result<()> {
    let state = Arc::new(State::default());
    let load = Model::builder(path).progress(|progress| {
        eprintln!("{} {:.0} %", progress.stage.doing(), progress.done * 100.0);
        true // `false` cancels
    });
    *state.model.lock().unwrap() = Some(load.load()?);
    let (events, window) = channel();
    ask(&state, "And it came to pass".into(), events);
    println!("{}", window.iter().collect::<String>());
    Ok(())
}
