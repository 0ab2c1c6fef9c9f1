//! Compiles a constraint to a token parser within bounded time, memory and stack.

use llguidance::Logger;
use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};

use super::kind::{Constraint, Kind};
use super::limits::on_large_stack;
use super::messages::said;
use super::unenforced::Unenforced;
use super::{gbnf, lark, limits, schema};
use crate::decode::error::Error;
use crate::load::vocabulary::Vocabulary;

/// Compiles a constraint.
pub(super) fn matcher(constraint: &Constraint, vocabulary: &Vocabulary) -> Result<llguidance::Matcher, Error> {
    guarded(constraint, || {
        let (grammar, log) = (GrammarInit::Serialized(grammar(constraint, Some(vocabulary))?), Logger::new(0, 0));
        let limits = limits::of_parser(constraint.has_schema());
        let parser = vocabulary.factory.create_parser_from_init_ext(grammar, log, Default::default(), limits);
        let matcher = llguidance::Matcher::new(parser);
        matcher.get_error().map_or(Ok(matcher), |error| Err(failure(constraint, said(&error))))
    })
}

impl Constraint {
    /// Checks the constraint without a model.
    ///
    /// # Errors
    ///
    /// [`Error::Constraint`](crate::generate::Error::Constraint) for a constraint that every vocabulary would refuse.
    pub fn check(&self) -> Result<(), Error> {
        guarded(self, || compiled(self))
    }
}

/// Finds out why and where llguidance refuses a constraint.
fn failure(constraint: &Constraint, reason: String) -> Unenforced {
    match &constraint.0 {
        Kind::JsonSchema { schema, .. } => constraint.named(match schema::read(schema) {
            Ok(schema) => schema::failure(&schema, reason),
            Err(unread) => unread,
        }),
        Kind::CallsOr { calls, form } => {
            let refused = [calls, form].into_iter().find_map(|part| compiled(part).err());
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
    let compiled = GrammarInit::Serialized(grammar(constraint, None)?)
        .to_internal(None, limits::of_parser(constraint.has_schema()));
    compiled.map(drop).map_err(|error| failure(constraint, said(&error.to_string())))
}

/// The grammar of tool calls in Hermes format, or of a text in another form.
const CALLS_OR: &str = r#"start: @form | call ("\n" call)*
call: "<tool_call>" /\n?/ @calls /\n?/ "</tool_call>"
"#;

/// Translates a constraint for llguidance. Without a vocabulary, the token names of a grammar are not looked up.
fn grammar(constraint: &Constraint, vocabulary: Option<&Vocabulary>) -> Result<TopLevelGrammar, Unenforced> {
    Ok(match &constraint.0 {
        Kind::JsonSchema { schema, is_open, .. } => {
            let prepared = schema::read(schema).and_then(|schema| schema::prepared(&schema, *is_open));
            TopLevelGrammar::from_json_schema(prepared.map_err(|unenforced| constraint.named(unenforced))?)
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
            limits::check_weight(limits::regex_weight(regex))?;
            self::regex(regex)
        }
        Kind::Choices(choices) => {
            if choices.is_empty() {
                return Err("it is empty".to_owned().into());
            }
            let escaped: Vec<String> = choices.iter().map(|choice| regex_lite::escape(choice)).collect();
            let regex = escaped.join("|");
            limits::sized(&regex)?;
            self::regex(&format!("(?:{regex})"))
        }
        Kind::Lark(grammar) => {
            limits::sized(grammar)?;
            TopLevelGrammar::from_lark(lark::prepared(grammar)?)
        }
        Kind::Gbnf(grammar) => {
            limits::sized(grammar)?;
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

fn regex(regex: &str) -> TopLevelGrammar {
    // Two slashes would begin a comment.
    TopLevelGrammar::from_regex(if regex.is_empty() { "(?:)" } else { regex })
}

/// Runs `work` on a large stack and turns a panic into an error.
fn guarded<T: Send>(constraint: &Constraint, work: impl FnOnce() -> Result<T, Unenforced> + Send) -> Result<T, Error> {
    on_large_stack(work).map_err(|unenforced| constraint.refused(unenforced))
}
