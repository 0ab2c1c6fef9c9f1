//! Jinja as Hugging Face's transformers renders it: a template's source and its variables flow in, its text flows out.
//!
//! The engine is minijinja with its Python methods. Around it are what transformers adds ([`functions`], [`json`]), what published
//! templates use and minijinja has not ([`filters`], [`methods`]), and the bounds of an untrusted program: minijinja counts
//! instructions, and one of them can make as many bytes as it likes. [`guard`] therefore makes calls of ours ([`operators`]) of every
//! expression that makes or searches values, and [`meter`] counts what they take.

mod checks;
mod clock;
mod fault;
mod filters;
mod functions;
mod guard;
mod json;
mod markup;
mod meter;
mod methods;
mod operators;
mod printing;
mod sequences;

use std::io;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Value};

use fault::fault;
pub(super) use fault::{Fault, FaultKind};
use meter::Meter;

pub use clock::LocalTime;
pub use meter::{Limit, Limits};

/// The name of the one template of an environment.
const NAME: &str = "chat template";

/// A template that was understood.
#[derive(Debug)]
pub(super) struct Template {
    /// Its source, with what [`guard`] puts into it.
    source: String,
}

impl Template {
    /// Reads a template.
    pub(super) fn parse(source: &str, limits: &Limits) -> Result<Self, Box<Fault>> {
        if source.len() > limits.source_bytes {
            return Err(Fault::new(FaultKind::Limit(Limit::SourceBytes(
                limits.source_bytes,
            ))));
        }
        let source = guard::guarded(source, limits)?;
        let mut environment = environment(&Meter::new(*limits), None);
        let added = environment.add_template_owned(NAME, source.as_str().to_owned());
        added.map_err(|error| fault(&error, limits))?;
        Ok(Self { source })
    }

    /// The text that it makes of these variables, each a JSON value with its name.
    pub(super) fn render<'a>(
        &self,
        variables: impl IntoIterator<Item = (&'a str, &'a serde_json::Value)>,
        now: Option<LocalTime>,
        limits: Limits,
    ) -> Result<String, Box<Fault>> {
        let meter = Meter::new(limits);
        let mut environment = environment(&meter, now);
        let added = environment.add_template(NAME, &self.source);
        added.map_err(|error| fault(&error, &limits))?;
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name, value_of(value)));
        let variables = Value::from_pairs(variables);
        let mut output = Bounded {
            bytes: Vec::new(),
            limit: limits.output_bytes,
            is_full: false,
        };
        let template = environment.get_template(NAME);
        let rendered = template.and_then(|template| {
            template
                .render_captured_to(variables, &mut output)
                .map(drop)
        });
        if output.is_full {
            return Err(Fault::new(FaultKind::Limit(Limit::OutputBytes(
                limits.output_bytes,
            ))));
        }
        rendered.map_err(|error| fault(&error, &limits))?;
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }
}

/// minijinja, as transformers sets jinja2 up (`chat_template_utils.py`, `_compile_jinja_template`).
fn environment<'a>(meter: &Arc<Meter>, now: Option<LocalTime>) -> Environment<'a> {
    let mut environment = Environment::new();
    // All has been trimmed by then.
    let mut untrimmed = SyntaxConfig::builder();
    untrimmed.keep_trailing_newline(true);
    environment.set_syntax(untrimmed.build().unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(meter.limits.calls as usize);
    environment.set_fuel(Some(meter.limits.steps));
    filters::add(&mut environment, meter);
    checks::add(&mut environment, meter);
    functions::add(&mut environment, meter, now);
    operators::add(&mut environment, meter);
    methods::add(&mut environment, meter);
    let meter = Arc::clone(meter);
    environment.set_formatter(move |output, _, value| {
        if let Some(text) = value.as_str() {
            meter.makes(text.len())?;
            return Ok(output.write_str(text)?);
        }
        Ok(output.write_str(&printing::text_of(&meter, value)?)?)
    });
    environment
}

/// A value of Python's for one of JSON's.
fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(it) => Value::from(*it),
        serde_json::Value::Number(it) => match (it.as_u64(), it.as_i64(), it.as_f64()) {
            (Some(it), _, _) => Value::from(it),
            (_, Some(it), _) => Value::from(it),
            (_, _, it) => Value::from(it.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(it) => Value::from(it.as_str()),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect::<Vec<_>>().into(),
        serde_json::Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (key.as_str(), value_of(value)));
            Value::from_pairs(entries)
        }
    }
}

/// How a template is read.
fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // The delimiters are the default ones, which are valid.
    syntax.build().unwrap_or_default()
}

/// Text up to a limit.
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
