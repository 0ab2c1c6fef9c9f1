//! Renders Jinja templates with the same results as Hugging Face's transformers. In: a template's source and its
//! variables. Out: a text.
//!
//! The engine is minijinja with its Python methods. What transformers adds is in [`functions`] and [`json`]. Features
//! that published templates use and minijinja lacks are in [`filters`], [`methods`] and [`printing`]. Templates are not
//! trusted. minijinja limits them by fuel, but does not count what values contain. So [`source`] inserts calls of
//! guards, and [`kept`] implements the guards.

mod arguments;
mod characters;
mod clock;
mod fault;
mod filters;
mod functions;
mod json;
mod kept;
mod limits;
mod list;
mod methods;
mod numbers;
mod printing;
mod python;
mod source;

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Value};
use serde_json::{Map, Value as Json};

use crate::Error;
use fault::fault;

pub use clock::LocalTime;
pub use limits::{Limit, Limits};

/// How many steps are allowed for each value of the input. Published templates need fewer, even for 3,000 short
/// messages.
const STEPS_PER_VALUE: u64 = 2000;

/// Bytes of the stack on which templates are parsed and rendered. In a build without optimisation, the deepest source
/// and the deepest values need less than 2 MiB.
const STACK: usize = 16 << 20;

/// The name of the only template in an environment.
const NAME: &str = "chat template";

/// A template that was parsed: its source, into which [`source`] has inserted guards.
#[derive(Debug)]
pub(super) struct Template(String);

impl Template {
    /// Parses a template.
    pub(super) fn parse(source: &str, limits: &Limits) -> Result<Self, Error> {
        if source.len() > limits.source_bytes {
            return Err(Error::Limit { limit: Limit::SourceBytes(limits.source_bytes), line: 0 });
        }
        // jinja2 also converts the ends of lines in texts.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = source::guarded(&source)?;
        on_large_stack(|| {
            let mut environment = environment(*limits, None);
            let added = environment.add_template(NAME, &source);
            added.map_err(|error| fault(&error, limits))
        })?;
        Ok(Self(source))
    }

    /// Renders the template with these variables.
    pub(super) fn render(
        &self,
        variables: &Map<String, Json>,
        now: Option<LocalTime>,
        mut limits: Limits,
    ) -> Result<String, Error> {
        on_large_stack(|| {
            let given: u64 = variables.values().map(steps_for).sum();
            limits.steps = limits.steps.saturating_add(given);
            let variables = variables.iter().map(|(name, value)| (name.as_str(), value_of(value)));
            let variables = Value::from_pairs(variables);
            let mut environment = environment(limits, now);
            let added = environment.add_template(NAME, &self.0);
            added.map_err(|error| fault(&error, &limits))?;
            let mut output = Bounded { bytes: Vec::new(), limit: limits.output_bytes, is_full: false };
            let template = environment.get_template(NAME);
            let rendered = template.and_then(|template| template.render_captured_to(variables, &mut output).map(drop));
            if output.is_full {
                return Err(Error::Limit { limit: Limit::OutputBytes(limits.output_bytes), line: 0 });
            }
            rendered.map_err(|error| fault(&error, &limits))?;
            Ok(String::from_utf8_lossy(&output.bytes).into_owned())
        })
    }
}

/// Runs `run` on a large stack. Within the limits of [`source`] and [`kept`], the stack cannot overflow, whether values
/// are parsed, compiled, printed, compared or dropped.
fn on_large_stack<T: Send>(run: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let failed = |reason: String| Err(Error::Failed { line: 0, reason });
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(STACK);
        match thread.spawn_scoped(scope, run).map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => failed("the template engine panicked".to_owned()),
            Err(error) => failed(format!("the thread that renders the template cannot start: {error}")),
        }
    })
}

/// An environment of minijinja with the settings that transformers gives to jinja2 (`chat_template_utils.py`,
/// `_compile_jinja_template`).
fn environment<'a>(limits: Limits, now: Option<LocalTime>) -> Environment<'a> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // This cannot fail, because the delimiters are the default ones.
    environment.set_syntax(syntax.build().unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(limits.calls as usize);
    environment.set_fuel(Some(limits.steps));
    kept::add(&mut environment, limits);
    filters::add(&mut environment);
    functions::add(&mut environment, now);
    methods::add(&mut environment);
    printing::add(&mut environment);
    environment
}

/// How many steps are allowed for a value of the input. The number is large because a template may go through all
/// messages once for each message.
fn steps_for(json: &Json) -> u64 {
    let within = match json {
        Json::String(text) => 2 * text.len() as u64,
        Json::Array(items) => items.iter().map(steps_for).sum(),
        Json::Object(entries) => entries.values().map(steps_for).sum(),
        _ => 0,
    };
    within.saturating_add(STEPS_PER_VALUE)
}

/// Converts a JSON value to the value that Python would have.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(whole), _, _) => Value::from(whole),
            (_, Some(negative), _) => Value::from(negative),
            (_, _, float) => Value::from(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect::<Vec<_>>().into(),
        Json::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| (key.as_str(), value_of(value)));
            Value::from_pairs(entries)
        }
    }
}

/// A writer that stops when the output reaches a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) > self.limit {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
