//! The bounds of an untrusted program, put into its source: minijinja counts instructions, but one of them can make as many bytes, or
//! search as many, as there are.
//!
//! A template is read by minijinja's parser and written anew from the tree that it gives. On the way what makes, searches or goes through
//! values becomes a call of ours ([`super::operators`], [`super::functions`]), which counts and then does it as Python does; everything else is
//! written as it was. What a method makes is counted where it is called, what is printed where it is printed. Lines stay where they
//! are, for errors to name them.

mod expressions;
mod statements;

use minijinja::machinery::{Span, Token, parse, tokenize};
use regex_lite::Regex;

use statements::Writer;

use super::fault::{Fault, FaultKind, fault};
use super::meter::Limits;

/// Counts a value that was made, with all that is in it.
pub(super) const MADE: &str = "__made";
/// What a filter made that is a generator in Python.
pub(super) const GENERATED: &str = "__generated";
/// Counts a value of which all is read.
pub(super) const READ: &str = "__read";
/// Counts a text that is looked into, or a list that is gone through.
pub(super) const GLANCE: &str = "__glance";
/// Checks what is kept in a namespace.
pub(super) const STORED: &str = "__stored";
/// Counts text of the template that is kept as a value.
pub(super) const KEPT: &str = "__kept";
/// What a `for` goes through.
pub(super) const ITEMS: &str = "__items";
/// Python's operators.
pub(super) const CONCAT: &str = "__concat";
pub(super) const ADD: &str = "__add";
pub(super) const MULTIPLY: &str = "__multiply";
pub(super) const MODULO: &str = "__modulo";
pub(super) const IN: &str = "__in";
pub(super) const ORDERED: &str = "__ordered";
pub(super) const SLICE: &str = "__slice";
/// `loop.cycle`.
pub(super) const CYCLE: &str = "__cycle";
/// What asks for another template fails.
pub(super) const NO_LOADER: &str = "__no_loader";

/// Tokens of one tag, and alternatives of one `if`: the parser goes down a level for each of some of them.
const MOST_TOKENS: usize = 1000;
const MOST_ALTERNATIVES: usize = 150;

/// The source with its guards.
pub(super) fn guarded(source: &str, limits: &Limits) -> Result<String, Box<Fault>> {
    let source = prepared(source);
    check_nesting(&source, limits)?;
    let template =
        parse(&source, super::NAME, super::syntax()).map_err(|error| fault(&error, limits))?;
    Writer::write(&source, &template)
}

/// Lines end as jinja2 reads them, and the tags by which transformers finds what a model wrote become blocks that change no text.
fn prepared(source: &str) -> String {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    for (name, instead) in [("generation", "with"), ("endgeneration", "endwith")] {
        let pattern = format!(r"\{{%([-+]?)\s*{name}\s*([-+]?)%\}}");
        if let Ok(pattern) = Regex::new(&pattern) {
            let tag = format!("{{%$1 {instead} $2%}}");
            source = pattern.replace_all(&source, tag).into_owned();
        }
    }
    source
}

/// Refuses what the parser would go too deep for. Brackets and blocks it counts itself.
fn check_nesting(source: &str, limits: &Limits) -> Result<(), Box<Fault>> {
    let mut in_tag = 0;
    let mut begins_block = false;
    let mut alternatives: Vec<usize> = Vec::new();
    for token in tokenize(source, false, super::syntax()) {
        let (token, span) = token.map_err(|error| fault(&error, limits))?;
        in_tag += 1;
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("if") if begins_block => alternatives.push(0),
            Token::Ident("elif") if begins_block => {
                if let Some(alternatives) = alternatives.last_mut() {
                    *alternatives += 1;
                }
            }
            Token::Ident("endif") if begins_block => drop(alternatives.pop()),
            _ => {}
        }
        begins_block = matches!(token, Token::BlockStart);
        if in_tag > MOST_TOKENS {
            return wrong(span, format!("more than {MOST_TOKENS} tokens in a tag"));
        }
        if alternatives
            .last()
            .is_some_and(|it| *it > MOST_ALTERNATIVES)
        {
            return wrong(
                span,
                format!("more than {MOST_ALTERNATIVES} alternatives of an if"),
            );
        }
    }
    Ok(())
}

fn wrong<T>(span: Span, reason: String) -> Result<T, Box<Fault>> {
    let mut fault = Fault::new(FaultKind::Syntax(reason));
    fault.line = span.start_line.into();
    Err(fault)
}

#[cfg(test)]
mod tests;
