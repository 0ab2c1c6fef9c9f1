//! A small file in the user's cache folder: one dated line per thing that was measured, since a home directory may be
//! on several machines.
//!
//! In flow a key and numbers; out flow the numbers of that key, the next time. A file that cannot be read, written or
//! understood is as good as none, and is said to `tracing` at debug level: measuring again is cheap.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use etcetera::BaseStrategy;

use super::date::Date;

/// More lines than this are forgotten, the oldest first.
const LINES: usize = 64;

/// A file of lines with `N` numbers each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheFile<const N: usize> {
    folder: Option<PathBuf>,
    name: &'static str,
    /// The first line. Its number changes with the meaning of the others.
    header: &'static str,
}

/// One line: the day, the numbers, and last the key, which may have spaces.
struct Line<const N: usize> {
    date: Date,
    numbers: [u64; N],
    key: String,
}

impl<const N: usize> CacheFile<N> {
    /// The file of this name in the user's cache folder; nothing is kept where the user has no home.
    pub(super) fn user(name: &'static str, header: &'static str) -> Self {
        Self {
            folder: user_folder(),
            name,
            header,
        }
    }

    /// The file of this name in this folder.
    pub(super) const fn at(folder: PathBuf, name: &'static str, header: &'static str) -> Self {
        Self {
            folder: Some(folder),
            name,
            header,
        }
    }

    /// The day and the numbers of a key.
    pub(super) fn get(&self, key: &str) -> Option<(Date, [u64; N])> {
        let key = in_one_line(key);
        let lines = self.read(self.folder.as_deref()?);
        let found = lines.into_iter().find(|line| line.key == key)?;
        Some((found.date, found.numbers))
    }

    /// Keeps the numbers of a key instead of earlier ones.
    pub(super) fn put(&self, key: &str, date: Date, numbers: [u64; N]) {
        let Some(folder) = self.folder.as_deref() else {
            return;
        };
        // One thread at a time, so that none loses what another keeps. Between processes the last one wins.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let key = in_one_line(key);
        let mut lines = self.read(folder);
        lines.retain(|line| line.key != key);
        lines.push(Line { date, numbers, key });
        let first = lines.len().saturating_sub(LINES);
        if let Err(error) = self.write(folder, &lines[first..]) {
            tracing::debug!(%error, file = self.name, folder = %folder.display(), "is not kept");
        }
    }

    fn read(&self, folder: &Path) -> Vec<Line<N>> {
        let text = match fs::read_to_string(folder.join(self.name)) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::debug!(%error, file = self.name, folder = %folder.display(), "is not read");
                }
                return Vec::new();
            }
        };
        let mut lines = text.lines();
        if lines.next() != Some(self.header) {
            tracing::debug!(file = self.name, folder = %folder.display(), "is of another version");
            return Vec::new();
        }
        let lines = lines.filter_map(|line| {
            let parsed = Line::parse(line);
            if parsed.is_none() {
                tracing::debug!(file = self.name, line, "is not understood");
            }
            parsed
        });
        lines.collect()
    }

    fn write(&self, folder: &Path, lines: &[Line<N>]) -> io::Result<()> {
        let mut text = format!("{}\n", self.header);
        for Line { date, numbers, key } in lines {
            let numbers = numbers.map(|number| number.to_string()).join(" ");
            text.push_str(&format!("{date} {numbers} {key}\n"));
        }
        replace(folder, self.name, &text)
    }
}

/// The user's own cache folder for this library; `None` where the user has no home.
pub(super) fn user_folder() -> Option<PathBuf> {
    let strategy = etcetera::base_strategy::choose_native_strategy();
    strategy.ok().map(|dirs| dirs.cache_dir().join("autoplace"))
}

/// Writes a file beside its place and moves it there: a reader finds the old file or the new one.
pub(super) fn replace(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!("{name}.{}", std::process::id()));
    let written = fs::write(&beside, text);
    let moved = written.and_then(|()| fs::rename(&beside, folder.join(name)));
    moved.inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    })
}

impl<const N: usize> Line<N> {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(N.saturating_add(2), ' ');
        let date = parts.next()?.parse().ok()?;
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = parts.next()?.parse().ok()?;
        }
        let key = parts.next()?.to_owned();
        Some(Self { date, numbers, key })
    }
}

fn in_one_line(key: &str) -> String {
    key.replace(char::is_control, " ")
}
