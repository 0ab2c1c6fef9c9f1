//! From a constraint to a parser of tokens, within bounded time, memory and stack.

use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::{JsonCompileOptions, Logger};
use serde_json::Value;

use super::vocabulary::Vocabulary;
use super::{Constraint, Kind, lark, schema};
use crate::generate::Error;

/// Bytes of a regular expression or grammar, and of all choices together.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Address space for the recursions of compiling, of which only what they use becomes memory.
const STACK: usize = 256 << 20;
/// llama.cpp's `SPACE_RULE` (common/json-schema-to-grammar.cpp).
const WHITESPACE: &str = r"(?: |\n{1,2}[ \t]{0,20})";
/// Escapes in JSON strings. Without `u` each text has one spelling, so that no property comes twice under two of them.
const ESCAPES: &str = "nrbtf\\\"";

/// What compiling a constraint, and one step of it, may take: llguidance's defaults, which its authors measured on
/// large schemas, but for what docs/constrained-output.md promises of memory and time.
fn limits(constraint: &Constraint) -> ParserLimits {
    // A step is quadratic in the items of a row, and that of an ambiguous grammar cubic. An object of 1,000 properties
    // that may all be missing has 4,000 at its beginning.
    let (max_items_in_row, step_max_items) = match constraint.0 {
        Kind::JsonSchema(_) => (5_000, 25_000),
        _ => (2_000, 10_000),
    };
    ParserLimits {
        max_items_in_row,
        step_max_items,
        // At 1 to 2 KiB each.
        max_lexer_states: 50_000,
        // More than 65,525 are a panic of llguidance's.
        max_grammar_size: 60_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiles a constraint.
pub(super) fn matcher(constraint: &Constraint, vocabulary: &Vocabulary) -> Result<llguidance::Matcher, Error> {
    guarded(constraint.name(), || {
        let (grammar, log) = (GrammarInit::Serialized(grammar(constraint)?), Logger::new(0, 0));
        let limits = limits(constraint);
        let parser = vocabulary.factory.create_parser_from_init_ext(grammar, log, Default::default(), limits);
        let matcher = llguidance::Matcher::new(parser);
        matcher.get_error().map_or(Ok(matcher), |error| Err(said(&error)))
    })
}

fn grammar(constraint: &Constraint) -> Result<TopLevelGrammar, String> {
    Ok(match &constraint.0 {
        Kind::JsonSchema(schema) => TopLevelGrammar::from_json_schema(json_schema(&schema::read(schema)?)?),
        Kind::Regex(regex) => {
            lark::check_weight(lark::regex_weight(regex))?;
            self::regex(regex)
        }
        Kind::Choices(choices) => {
            if choices.is_empty() {
                return Err("it is empty".to_owned());
            }
            let escaped: Vec<String> = choices.iter().map(|it| regex_lite::escape(it)).collect();
            let regex = escaped.join("|");
            sized(&regex)?;
            self::regex(&format!("(?:{regex})"))
        }
        Kind::Lark(grammar) => {
            sized(grammar)?;
            TopLevelGrammar::from_lark(lark::prepared(grammar)?)
        }
    })
}

/// A schema made ready, with llguidance's options in it.
pub(super) fn json_schema(schema: &Value) -> Result<Value, String> {
    let mut schema = schema::prepared(schema)?;
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITESPACE.to_owned()),
        json_allowed_escapes: Some(ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

fn regex(regex: &str) -> TopLevelGrammar {
    // Two slashes would begin a comment.
    TopLevelGrammar::from_regex(if regex.is_empty() { "(?:)" } else { regex })
}

fn sized(text: &str) -> Result<(), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is larger than {} KiB", MAX_BYTES >> 10));
    }
    Ok(())
}

/// Does the work on a stack that is large enough for it, and makes an error of a panic.
pub(super) fn guarded<T: Send>(constraint: &str, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, Error> {
    let failed = |reason: String| Error::Constraint { constraint: constraint.to_owned(), reason };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("autoplace-constraint".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread to compile it on: {error}")))?
            .join()
            .unwrap_or_else(|_| Err("llguidance panicked".to_owned()))
            .map_err(failed)
    })
}

/// llguidance's message in one line.
pub(super) fn said(message: &str) -> String {
    let message = message.split("<non-verbose/>").next().unwrap_or_default();
    let message = message.split("<backtrace>").next().unwrap_or_default();
    if message.contains("missing special token prefix") {
        // TokTrie::get_special_tokens, with no control token in the tree.
        return "it names a control token, which no constraint allows".to_owned();
    }
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut line = lines.join("; ");
    if let Some((at, _)) = line.char_indices().nth(300) {
        line.truncate(at);
        line.push_str("...");
    }
    line
}
