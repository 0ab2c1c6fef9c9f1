//! Compiles a constraint to a token parser within bounded time, memory and stack.

use std::thread;

use llguidance::Logger;
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use serde_json::Value;

use super::schema::Unenforced;
use super::vocabulary::Vocabulary;
use super::{Constraint, Kind, gbnf, lark, schema};
use crate::decode::error::Error;

/// Maximum bytes of a regular expression, of a grammar, and of all choices together.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Address space for the recursion of a compilation. Only the used part becomes memory.
const STACK: usize = 256 << 20;
/// Limits on the compilation of a constraint and on each step. These are llguidance's defaults, which its authors
/// measured on large schemas, except where docs/constrained-output.md promises other limits.
fn limits(constraint: &Constraint) -> ParserLimits {
    // A step is quadratic in the items of a row, and cubic for an ambiguous grammar. An object of 1,000 optional
    // properties has 4,000 items at its beginning.
    let (max_items_in_row, step_max_items) = match constraint.0 {
        Kind::JsonSchema { .. } | Kind::CallsOr { .. } | Kind::TextOrCalls(_) => (5_000, 25_000),
        _ => (2_000, 10_000),
    };
    ParserLimits {
        max_items_in_row,
        step_max_items,
        // Each state takes 1 to 2 KiB.
        max_lexer_states: 50_000,
        // llguidance panics above 65,525.
        max_grammar_size: 60_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiles a constraint.
pub(super) fn matcher(constraint: &Constraint, vocabulary: &Vocabulary) -> Result<llguidance::Matcher, Error> {
    guarded(constraint, || {
        let (grammar, log) = (GrammarInit::Serialized(grammar(constraint, Some(vocabulary))?), Logger::new(0, 0));
        let limits = limits(constraint);
        let parser = vocabulary.factory.create_parser_from_init_ext(grammar, log, Default::default(), limits);
        let matcher = llguidance::Matcher::new(parser);
        matcher.get_error().map_or(Ok(matcher), |error| Err(failure(constraint, said(&error))))
    })
}

/// Checks a constraint without a vocabulary.
pub(super) fn check(constraint: &Constraint) -> Result<(), Error> {
    guarded(constraint, || compiled(constraint))
}

/// Finds out why and where llguidance refuses a constraint.
fn failure(constraint: &Constraint, reason: String) -> Unenforced {
    match &constraint.0 {
        Kind::JsonSchema { schema, .. } => constraint.named(match schema::read(schema) {
            Ok(schema) => schema::failure(&schema, reason),
            Err(unread) => unread,
        }),
        Kind::CallsOr { calls, form } => {
            let refused = [calls, form].into_iter().find_map(|it| compiled(it).err());
            refused.unwrap_or_else(|| reason.into())
        }
        Kind::TextOrCalls(calls) => {
            let parts = calls.grammar(&[]).map_or_else(|_| Vec::new(), |written| written.parts);
            let refused = parts.iter().find_map(|(_, part)| compiled(part).err());
            refused.unwrap_or_else(|| reason.into())
        }
        _ => reason.into(),
    }
}

/// Compiles a constraint without a vocabulary.
fn compiled(constraint: &Constraint) -> Result<(), Unenforced> {
    let compiled = GrammarInit::Serialized(grammar(constraint, None)?).to_internal(None, limits(constraint));
    compiled.map(drop).map_err(|error| failure(constraint, said(&error.to_string())))
}

/// Tool calls in Hermes format, or another form.
const CALLS_OR: &str = r#"start: @form | call ("\n" call)*
call: "<tool_call>" /\n?/ @calls /\n?/ "</tool_call>"
"#;

/// Translates a constraint for llguidance. Without a vocabulary, the token names of a grammar are not looked up.
fn grammar(constraint: &Constraint, vocabulary: Option<&Vocabulary>) -> Result<TopLevelGrammar, Unenforced> {
    Ok(match &constraint.0 {
        Kind::JsonSchema { schema, is_open, .. } => {
            let prepared = schema::read(schema).and_then(|schema| schema::prepared(&schema, *is_open));
            TopLevelGrammar::from_json_schema(prepared.map_err(|it| constraint.named(it))?)
        }
        Kind::CallsOr { calls, form } => {
            let mut whole = TopLevelGrammar::from_lark(CALLS_OR.to_owned());
            whole.grammars.push(part("calls", calls, vocabulary)?);
            whole.grammars.push(part("form", form, vocabulary)?);
            whole
        }
        Kind::TextOrCalls(calls) => {
            let control = vocabulary.map_or(&[][..], |vocabulary| &vocabulary.control);
            let written = calls.grammar(control)?;
            let mut whole = TopLevelGrammar::from_lark(written.lark);
            for (name, constraint) in &written.parts {
                whole.grammars.push(part(name, constraint, vocabulary)?);
            }
            whole
        }
        Kind::Regex(regex) => {
            lark::check_weight(lark::regex_weight(regex))?;
            self::regex(regex)
        }
        Kind::Choices(choices) => {
            if choices.is_empty() {
                return Err("it is empty".to_owned().into());
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
        Kind::Gbnf(grammar) => {
            sized(grammar)?;
            let token = |text: &str| vocabulary.map_or(Ok(0), |vocabulary| vocabulary.token(text));
            TopLevelGrammar::from_lark(lark::prepared(&gbnf::lark(grammar, &token)?)?)
        }
    })
}

/// A constraint as a named part of a larger grammar.
fn part(name: &str, constraint: &Constraint, vocabulary: Option<&Vocabulary>) -> Result<GrammarWithLexer, Unenforced> {
    let only = grammar(constraint, vocabulary)?.grammars.into_iter().next().unwrap_or_default();
    Ok(GrammarWithLexer { name: Some(name.to_owned()), ..only })
}

/// Prepares a schema inside a grammar, which follows JSON Schema to the letter.
pub(super) fn json_schema(schema: &Value) -> Result<Value, String> {
    schema::prepared(schema, true).map_err(|unenforced| unenforced.to_string())
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

/// Runs `work` on a large stack and turns a panic into an error.
pub(super) fn guarded<T: Send>(
    constraint: &Constraint,
    work: impl FnOnce() -> Result<T, Unenforced> + Send,
) -> Result<T, Error> {
    on_large_stack(work).map_err(|unenforced| constraint.refused(unenforced))
}

/// As [`guarded`], without a constraint for the error.
pub(super) fn on_large_stack<T: Send, E: Send + From<String>>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("autoplace-constraint".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| E::from(format!("no thread to compile it on: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(E::from("llguidance panicked".to_owned())))
    })
}

/// llguidance's message as one line.
pub(super) fn said(message: &str) -> String {
    let message = message.split("<non-verbose/>").next().unwrap_or_default();
    let message = message.split("<backtrace>").next().unwrap_or_default();
    if message.contains("missing special token prefix") {
        // Message of TokTrie::get_special_tokens when the tree has no control token.
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
