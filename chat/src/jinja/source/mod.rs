//! Rewrites the source of a template for minijinja. Wherever the template makes new values out of others, it inserts a
//! call of a guard.
//!
//! minijinja's fuel counts texts and the number of items in lists, but not what the items contain. So a template could
//! double the content again and again with `[x, x]`, at no cost. When values are printed, compared or dropped, the
//! recursion is as deep as the values are nested. So every expression that creates a list, a dict or a tuple passes
//! through our filter [`KEPT`]. The filter charges fuel for the whole content, and limits how deep it is. Tags are
//! split into tokens in the same way as in minijinja's lexer. Then minijinja parses the source that was rewritten.

mod guards;
mod names;
mod rewrite;
mod tag;

use std::sync::LazyLock;

use regex_lite::Regex;

use self::guards::Guards;
pub(super) use self::names::{ATTRIBUTE, DATA, GENERATED, ITEMS, KEPT, LIST, PRINTF, PRIVATE, SUM, TEXT, TICK, UNSET};
use self::tag::{Tag, regex};
use super::python;
use crate::Error;

/// Maximum number of `elif`s. With each of them, minijinja's parser recurses one level deeper.
const MAX_ELIFS: usize = 500;

/// The source of a template, with guards.
pub(super) fn guarded(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len() * 2);
    let marks_html = MARKS_HTML.is_match(source);
    let mut rest = source;
    let mut elifs = 0;
    let mut open = Vec::new();
    while let Some(found) = OPEN.find(rest) {
        let is_block = found.as_str().starts_with("{%");
        let wrong = |reason: &str| {
            let at = source.len() - rest.len() + found.start();
            let line = 1 + source[..at].matches('\n').count();
            Error::Syntax { line: line.try_into().unwrap_or(u32::MAX), reason: reason.to_owned() }
        };
        let (before, inner) = rest.split_at(found.end());
        out.push_str(before);
        if found.as_str().starts_with("{#") {
            let end = inner.find("#}").ok_or_else(|| wrong("unexpected end of comment"))?;
            rest = &inner[end + 2..];
            out.push_str(&inner[..end + 2]);
            continue;
        }
        if let Some(raw) = RAW.find(inner).filter(|_| is_block) {
            let end = END_RAW.find_at(inner, raw.end());
            let end = end.ok_or_else(|| wrong("unexpected end of raw block"))?.end();
            out.push_str(&inner[..end]);
            rest = &inner[end..];
            continue;
        }
        let tag = Tag::read(inner, is_block, marks_html).map_err(wrong)?;
        elifs += usize::from(tag.word(0) == "elif");
        if elifs > MAX_ELIFS {
            return Err(wrong("more than 500 `elif`"));
        }
        tag.write(&mut out, &mut open).map_err(wrong)?;
        rest = &inner[tag.inner.len() + tag.end.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

impl<'a> Tag<'a> {
    /// Writes the tag with its guards. `open` contains the loops and conditions around the tag.
    fn write(&self, out: &mut String, open: &mut Vec<Open>) -> Result<(), &'static str> {
        self.check_loops()?;
        let first = if self.is_block { self.word(0) } else { "" };
        let is_else_of_loop = first == "else" && open.last() == Some(&Open::For);
        match first {
            "for" => open.push(Open::For),
            "if" => open.push(Open::If),
            "endfor" | "endif" if open.pop() == Some(Open::Else) => out.push_str(" endwith %}{% "),
            _ => {}
        }
        let mut defaults = Vec::new();
        match first {
            // These tags need extensions that are off in transformers.
            "do" | "autoescape" => return Err("unknown tag"),
            // These tags only begin and end a scope.
            "generation" | "block" => out.push_str(" with "),
            "endgeneration" | "endblock" => out.push_str(" endwith "),
            _ => defaults = self.write_tokens(first, out)?,
        }
        out.push_str(self.end);
        if is_else_of_loop {
            // The `else` of a loop has a separate scope.
            open.pop();
            open.push(Open::Else);
            out.push_str("{% with ");
            out.push_str(self.end);
        }
        for (name, default) in defaults {
            // A default can use the parameters that come before it.
            let value = format!("{{% set {name} = ({default})|{KEPT} if {name} is {UNSET} else {name} ");
            out.push_str(&value);
            out.push_str(self.end);
        }
        if matches!(first, "for" | "macro") {
            for text in ["{% set __ = ", TICK, "() ", self.end] {
                out.push_str(text);
            }
        }
        Ok(())
    }

    /// If a loop stored itself (`loop.changed(loop)`), it would never be freed, and `loop.cycle()` would divide by
    /// zero.
    fn check_loops(&self) -> Result<(), &'static str> {
        for index in (0..self.tokens.len()).filter(|index| self.word(*index) == "loop") {
            let is_name = matches!(index.checked_sub(1).map(|before| self.word(before)), Some("."))
                || self.word(index + 1) == "=";
            if !is_name && !matches!(self.word(index + 1), "." | "(" | "is") {
                return Err("`loop` is used as a value");
            }
            if self.word(index + 2) == "cycle" && matches!(self.word(index + 4), ")" | "*" | "**") {
                return Err("`loop.cycle` without values");
            }
        }
        Ok(())
    }

    /// Writes the tokens. Returns the parameters of a macro that have defaults, each with its default.
    fn write_tokens(&self, first: &str, out: &mut String) -> Result<Vec<(&'a str, String)>, &'static str> {
        let mut guards = Guards::new(self.tokens.len());
        let indices = 0..self.tokens.len();
        // There is one row for each pair of brackets. A row contains the tokens directly between its brackets, and the
        // brackets of the next level.
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); self.tokens.len() + 1];
        for index in indices.clone() {
            let around = self.tokens[index].around;
            rows[around.map_or(0, |open| open + 1)].push(index);
        }
        let place_of = |text: &str| rows[0].iter().copied().find(|index| self.word(*index) == text);
        let (equals, within) = (place_of("="), place_of("in"));
        // The targets of an assignment create no value.
        let targets = match first {
            "set" => equals,
            "for" => within,
            _ => None,
        };
        for index in indices.clone() {
            if self.word(index).starts_with(['\'', '"']) {
                let text = python::unescaped(self.word(index))?;
                guards.instead[index] = Some(python::literal(&text));
            }
        }
        let tuple_from = match first {
            "set" => equals.map(|index| index + 1),
            "for" => within.map(|index| index + 1),
            "" => Some(0),
            _ => None,
        };
        for row in &rows {
            self.guard_signs_and_attributes(row, targets.unwrap_or(0), &mut guards);
            self.guard_literals_and_filters(row, targets.unwrap_or(0), &mut guards);
            self.guard_runs(row, false, &mut guards);
            self.guard_runs(row, true, &mut guards);
        }
        if let ("set", Some(equals)) = (first, equals) {
            let of_namespace = indices.clone().take(equals).any(|index| self.word(index) == ".");
            let is_private = indices
                .clone()
                .take(equals)
                .any(|index| index > 0 && self.word(index - 1) == "." && self.word(index).starts_with('_'));
            let filter = match of_namespace {
                true if is_private => PRIVATE,
                true => DATA,
                false => KEPT,
            };
            guards.wrap(equals + 1, self.tokens.len() - 1, filter);
        }
        if let Some(from) = tuple_from {
            self.guard_tuple(&rows[0], from, &mut guards);
        }
        if let ("for", Some(within)) = (first, within) {
            self.guard_iterated(&rows[0], within + 1, &mut guards);
        }
        if first == "with" {
            self.separate_with(&rows[0], &mut guards);
        }
        let defaults = match first {
            "macro" => self.take_defaults(&mut guards),
            _ => Vec::new(),
        };
        out.push_str(&self.text(0..self.tokens.len(), &guards));
        let end = self.tokens.last().map_or(0, |token| token.at + token.text.len());
        out.push_str(&self.inner[end..]);
        Ok(defaults)
    }
}

/// The statement to which an `else` belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    For,
    If,
    /// The `else` branch of a loop, until its `endfor`.
    Else,
}

/// The filters that mark a text as HTML. Their names may also be arguments, as in `map('escape')`.
static MARKS_HTML: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(?:safe|e|escape)\b"));
static OPEN: LazyLock<Regex> = LazyLock::new(|| regex(r"\{[{%#][-+]?"));
static RAW: LazyLock<Regex> = LazyLock::new(|| regex(r"^[ \t\n\r\x0C]*raw[ \t\n\r\x0C]*[-+]?%\}"));
static END_RAW: LazyLock<Regex> = LazyLock::new(|| regex(r"\{%[-+]?[ \t\n\r\x0C]*endraw[ \t\n\r\x0C]*[-+]?%\}"));
