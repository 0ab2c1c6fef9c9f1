//! Translates GBNF, llama.cpp's notation of grammars, into a grammar of llguidance.
//!
//! In: the text of a grammar, as llama.cpp reads it (src/llama-grammar.cpp). Out: a grammar in llguidance's variant of
//! Lark that allows exactly the same texts. GBNF describes sequences of characters, whereas llguidance reads terminals,
//! and reads as many characters as each terminal can match. Regular parts become terminals. A terminal is divided until
//! its longest match is the only way to read a text ([`overlap`]).

mod expr;
mod overlap;
mod parse;
mod pieces;
mod place;
mod rules;
mod write;

pub(super) use parse::TokenOf;

use super::unenforced::Unenforced;
use pieces::Pieces;

/// Maximum number of rules.
const MAX_RULES: usize = 2_000;

/// The grammar in Lark. `token_of` finds the token of a text such as `<think>`.
pub(super) fn lark(text: &str, token_of: TokenOf<'_>) -> Result<String, Unenforced> {
    let mut rules = parse::rules(text, token_of)?;
    if rules.len() > MAX_RULES {
        return Err(format!("it has {} rules; at most {MAX_RULES} are possible", rules.len()).into());
    }
    rules::refuse_left_recursion(text, &rules)?;
    rules::prune(text, &mut rules)?;
    rules::unroll_tails(&mut rules);
    let mut pieces = Pieces::new(&rules);
    overlap::resolve(&mut pieces)?;
    Ok(write::lark(&pieces))
}

/// Whether a grammar is written in GBNF: `::=` follows the first name after comments and empty lines.
pub(super) fn is_gbnf(text: &str) -> bool {
    let is_blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut definition = text.trim_start_matches('\u{feff}').lines().skip_while(is_blank);
    let first = definition.next().unwrap_or_default().trim_start();
    let name = first.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(first.len());
    name > 0 && first[name..].trim_start().starts_with("::=")
}

#[cfg(test)]
mod tests;
