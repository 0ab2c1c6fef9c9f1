//! Reads a worker's standard error. All lines go to `tracing`; the last lines become part of the error about the
//! worker's death.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::channel::LEVEL;
use crate::sync::lock;

const KEPT: usize = 64;

/// Maximum bytes of a line. A longer line is split.
const MAX_LINE: u64 = 4 << 10;

/// The last lines that a worker has printed so far.
pub(super) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// No message is sent through this channel. It disconnects after the last line.
    end: mpsc::Receiver<()>,
}

impl Tail {
    /// Reads `pipe` to its end on a separate thread, and passes every line on to `tracing`.
    pub(super) fn follow(pipe: PipeReader) -> io::Result<Self> {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let (alive, end) = mpsc::channel();
        thread::Builder::new().name("autoplace-worker-log".into()).spawn(move || {
            let _alive: mpsc::Sender<()> = alive;
            let mut pipe = BufReader::new(pipe);
            while let Some(line) = next_line(&mut pipe) {
                let line = pass_on(&line);
                let mut kept = lock(&kept);
                if kept.len() == KEPT {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        })?;
        Ok(Self { lines, end })
    }

    /// Waits for the last line, but at most for `patience`, because a child process of the worker may keep the other
    /// end of the pipe open.
    pub(super) fn wait(&self, patience: Duration) {
        if self.end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("a process still holds a dead worker's standard error");
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        lock(&self.lines).iter().cloned().collect()
    }
}

/// The next non-empty line; `None` at the end.
fn next_line(pipe: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = Vec::new();
        let read = pipe.take(MAX_LINE).read_until(b'\n', &mut line).ok()?;
        if read == 0 {
            return None;
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if !line.is_empty() {
            return Some(line);
        }
    }
}

/// Passes a line to `tracing` at the level that [`LogLines`] wrote at its beginning, and returns it without the level.
/// Lines from other sources (an assertion, or the C++ library) have no level and become warnings.
fn pass_on(line: &str) -> String {
    let leveled = line.split_once(' ').and_then(|(level, text)| Some((level.parse().ok()?, text)));
    let (level, text) = leveled.unwrap_or((Level::WARN, line));
    // The macros need a constant level.
    match level {
        Level::ERROR => tracing::error!("{text}"),
        Level::WARN => tracing::warn!("{text}"),
        Level::INFO => tracing::info!("{text}"),
        Level::DEBUG => tracing::debug!("{text}"),
        Level::TRACE => tracing::trace!("{text}"),
    }
    text.to_owned()
}

/// The worker's `tracing` subscriber. The subscriber writes each event as a line on standard error that begins with the
/// level.
pub(crate) struct LogLines {
    most: LevelFilter,
}

impl LogLines {
    /// Writes the events that the application has requested, and always warnings.
    pub(crate) fn as_asked() -> Self {
        let most = std::env::var(LEVEL).ok().and_then(|level| level.parse().ok());
        Self { most: most.unwrap_or(LevelFilter::WARN).max(LevelFilter::WARN) }
    }
}

impl Subscriber for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        // All spans have the same id, because no line mentions them.
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(format!("{} {}:", metadata.level(), metadata.target()));
        event.record(&mut line);
        line.0.push('\n');
        // A failure cannot be reported anywhere.
        let _ = io::stderr().lock().write_all(line.0.as_bytes());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_the_others_forgotten() {
        let (reader, mut writer) = io::pipe().unwrap();
        let tail = Tail::follow(reader).unwrap();
        for n in 0..KEPT + 10 {
            writeln!(writer, "line {n}\n").unwrap();
        }
        drop(writer);
        tail.wait(Duration::from_secs(60));
        let lines = tail.lines();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines[0], "line 10");
        assert_eq!(lines[KEPT - 1], format!("line {}", KEPT + 9));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let endless = vec![b'x'; 3 * MAX_LINE as usize];
        assert_eq!(next_line(&mut &endless[..]).unwrap().len() as u64, MAX_LINE);
    }

    #[test]
    fn a_level_is_not_part_of_a_line() {
        assert_eq!(pass_on("ERROR ggml::cuda: out of memory"), "ggml::cuda: out of memory");
        assert_eq!(pass_on("ggml.c:12: GGML_ASSERT(x) failed"), "ggml.c:12: GGML_ASSERT(x) failed");
    }
}
