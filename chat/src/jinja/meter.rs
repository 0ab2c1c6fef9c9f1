//! What a template may take: steps, bytes, nesting. Templates come with models, from anybody.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::fault::{FaultKind, error, failed};

/// What a template may take before it is stopped with an error.
///
/// The defaults are far above what published templates take with prompts of megabytes, and stop a hostile one within seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the template's source.
    pub source_bytes: usize,
    /// Instructions of the engine; and as many again for the elements of lists, and for each 64 bytes of text, that are made or searched.
    pub steps: u64,
    /// Bytes of all texts and lists that it makes on its way, together, whether or not it keeps them.
    pub memory_bytes: usize,
    /// Bytes of the prompt that it makes.
    pub output_bytes: usize,
    /// Macros, loops and includes within each other.
    pub calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes: 1 << 20,
            steps: 20_000_000,
            memory_bytes: 512 << 20,
            output_bytes: 64 << 20,
            calls: 60,
        }
    }
}

/// Which of the [`Limits`] a template has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::source_bytes`].
    SourceBytes(usize),
    /// [`Limits::steps`].
    Steps(u64),
    /// [`Limits::memory_bytes`].
    MemoryBytes(usize),
    /// [`Limits::output_bytes`].
    OutputBytes(usize),
    /// [`Limits::calls`].
    Calls(u32),
    /// Values within values.
    Nesting(u32),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceBytes(bytes) => write!(f, "{bytes} bytes of source"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::MemoryBytes(bytes) => write!(f, "{bytes} bytes of memory"),
            Self::OutputBytes(bytes) => write!(f, "{bytes} bytes of prompt"),
            Self::Calls(calls) => write!(f, "{calls} calls within each other"),
            Self::Nesting(levels) => write!(f, "{levels} levels of nesting"),
        }
    }
}

/// Values within values: what recursion over one is safe with. JSON readers stop at 128.
const MOST_LEVELS: u32 = 200;

/// Bytes of text per step.
const BYTES_PER_STEP: usize = 64;

/// Bytes of an element of a list.
pub(super) const BYTES_PER_VALUE: usize = size_of::<Value>();

/// Counts what one rendering takes.
#[derive(Debug)]
pub(super) struct Meter {
    steps: AtomicU64,
    bytes: AtomicUsize,
    pub(super) limits: Limits,
}

impl Meter {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            steps: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            limits,
        })
    }

    pub(super) fn steps(&self, steps: usize) -> Result<(), Error> {
        let before = self.steps.fetch_add(steps as u64, Ordering::Relaxed);
        if before.saturating_add(steps as u64) > self.limits.steps {
            return Err(error(FaultKind::Limit(Limit::Steps(self.limits.steps))));
        }
        Ok(())
    }

    /// A text of so many bytes is made: asked before it is, wherever it may be many times as long as what it is made of.
    pub(super) fn makes(&self, bytes: usize) -> Result<(), Error> {
        self.steps(1 + bytes / BYTES_PER_STEP)?;
        let before = self.bytes.load(Ordering::Relaxed);
        let bytes = before.saturating_add(bytes);
        if bytes > self.limits.memory_bytes {
            return Err(error(FaultKind::Limit(Limit::MemoryBytes(
                self.limits.memory_bytes,
            ))));
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A text is looked into, or a list is gone through.
    pub(super) fn glances(&self, value: &Value) -> Result<(), Error> {
        let steps = match value.as_str() {
            Some(text) => text.len() / BYTES_PER_STEP,
            None if value.kind() == ValueKind::Iterable => 0,
            None => value.len().unwrap_or(0),
        };
        self.steps(1 + steps)
    }

    /// All of a value is read.
    pub(super) fn reads(&self, value: &Value) -> Result<(), Error> {
        self.cost(value).map(drop)
    }

    /// All of a value is read, in so many steps.
    pub(super) fn cost(&self, value: &Value) -> Result<usize, Error> {
        let mut all = 0;
        self.walk(value, 0, &mut |bytes| {
            let steps = 1 + bytes / BYTES_PER_STEP;
            all += steps;
            self.steps(steps)
        })?;
        Ok(all)
    }

    /// Data alone, which nothing can be changed in: what a namespace may keep.
    ///
    /// Values within values are counted where one is made of others. A namespace within another could grow deeper afterwards, and of what a
    /// macro or a loop holds nothing can be seen.
    pub(super) fn stores(&self, value: &Value) -> Result<(), Error> {
        self.reads(value)?;
        Self::is_data(value)
    }

    fn is_data(value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map if is_dict(value) => {
                for key in value.try_iter()? {
                    Self::is_data(&value.get_item(&key)?)?;
                }
                Ok(())
            }
            ValueKind::Map | ValueKind::Plain => Err(failed(format!(
                "a namespace keeps data, and no {}",
                type_name(value)
            ))),
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter()?.try_for_each(|item| Self::is_data(&item))
            }
            _ => Ok(()),
        }
    }

    /// A value is made, with all that is in it: what would have to be written down to show it.
    pub(super) fn value(&self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.makes(text_bytes(value)),
            ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => self.reads(value),
            _ => self.steps(1),
        }
    }

    fn walk(
        &self,
        value: &Value,
        level: u32,
        see: &mut impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if level > MOST_LEVELS {
            return Err(error(FaultKind::Limit(Limit::Nesting(MOST_LEVELS))));
        }
        match value.kind() {
            ValueKind::String => see(text_bytes(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                self.steps(value.len().unwrap_or(0))?;
                for item in value.try_iter()? {
                    self.walk(&item, level + 1, see)?;
                }
                Ok(())
            }
            ValueKind::Map => {
                self.steps(value.len().unwrap_or(0))?;
                for key in value.try_iter()? {
                    see(text_bytes(&key))?;
                    self.walk(&value.get_item(&key)?, level + 1, see)?;
                }
                Ok(())
            }
            _ => see(0),
        }
    }
}

fn text_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// Whether a map is a dict: namespaces, macros and loops are maps to minijinja too.
pub(super) fn is_dict(value: &Value) -> bool {
    !["namespace", "macro", "loop"].contains(&&*type_name(value))
}

/// The last word of the name of an object's type.
fn type_name(value: &Value) -> String {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.rsplit("::").next().unwrap_or(name).to_lowercase()
}
