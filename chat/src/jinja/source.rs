//! A template's source as minijinja gets it: with calls of ours where a template makes values of others.
//!
//! minijinja's fuel pays for texts and for the slots of lists, but not for what a list holds: `[x, x]`, many times,
//! doubles for nothing. And what prints, compares or drops values recurses as deep as they are. So whatever makes a
//! list, a dict or a tuple passes through a filter of ours ([`KEPT`]), which pays for all that is in it and bounds its
//! depth. The tags are read token by token, as minijinja's lexer reads them; their grammar is minijinja's affair.

use std::ops::Range;
use std::sync::LazyLock;

use regex_lite::Regex;

use super::methods::{DICT_METHODS, LIST_METHODS};
use super::python;
use crate::Error;

/// The filter of every value that is made of others, and of what a variable is set to.
pub(super) const KEPT: &str = "__kept";
/// The filter of what jinja2's filters compute one at a time.
pub(super) const GENERATED: &str = "__generated";
/// The filter of what a namespace keeps.
pub(super) const DATA: &str = "__data";
/// The filter of what `~` joins.
pub(super) const TEXT: &str = "__text";
/// The function that adds texts of which one is marked as HTML.
pub(super) const SUM: &str = "__sum";
/// The filter for Python's `%` behind a text.
pub(super) const PRINTF: &str = "__printf";
/// The filter for an attribute that may be a method.
pub(super) const ATTRIBUTE: &str = "__attribute";
/// The filter of what is written to a name of a namespace that begins with `_`: it refuses.
pub(super) const PRIVATE: &str = "__private";
/// The filter of a list that a template may change.
pub(super) const LIST: &str = "__list";
/// What stands for a parameter of a macro that was not given, and the test for it.
pub(super) const UNSET: &str = "__unset";
/// The function that every loop and macro begins with.
pub(super) const TICK: &str = "__tick";

/// More than any published template has in a tag (200), and no deeper a tree than parsing and compiling recurse into.
const MOST_TOKENS: usize = 1000;
/// Each is one level deeper to minijinja's parser.
const MOST_ELIFS: usize = 500;

/// A tag, or an expression between `{{` and `}}`.
struct Tag<'a> {
    /// What is in it, from behind `{%` to before what closes it.
    inner: &'a str,
    tokens: Vec<Token<'a>>,
    /// What closes it: `-%}`.
    end: &'a str,
    is_block: bool,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    at: usize,
    text: &'a str,
    /// The token that opens the innermost bracket around it.
    around: Option<usize>,
}

/// The source with its guards.
pub(super) fn guarded(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len() * 2);
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
        let tag = Tag::read(inner, is_block).map_err(wrong)?;
        elifs += usize::from(tag.word(0) == "elif");
        if elifs > MOST_ELIFS {
            return Err(wrong("over 500 `elif`"));
        }
        tag.write(&mut out, &mut open).map_err(wrong)?;
        rest = &inner[tag.inner.len() + tag.end.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

impl<'a> Tag<'a> {
    /// Reads the tokens of a tag, up to what closes it outside of all brackets.
    fn read(source: &'a str, is_block: bool) -> Result<Self, &'static str> {
        let close = if is_block { "%}" } else { "}}" };
        let mut tokens: Vec<Token<'a>> = Vec::new();
        let mut open = Vec::new();
        let mut at = 0;
        loop {
            let rest = &source[at..];
            at += rest.len() - rest.trim_ascii_start().len();
            let rest = &source[at..];
            let sign = usize::from(rest.starts_with(['-', '+']));
            if open.is_empty() && rest[sign..].starts_with(close) {
                return Ok(Self { inner: &source[..at], tokens, end: &rest[..sign + close.len()], is_block });
            }
            let text = TOKEN.find(rest).ok_or("unexpected end of a tag")?.as_str();
            let before = source.as_bytes()[..at].last().copied();
            let after = rest.as_bytes().get(text.len()).copied();
            match text.as_bytes()[0] {
                b'\'' | b'"' if text.len() == 1 => return Err("unexpected end of string"),
                b'0'..=b'9' if runs_on(after, before) => return Err("a number that runs on"),
                b'_' if text.starts_with("__") => return Err("a name that begins with `__`"),
                b')' | b']' | b'}' => open.pop().map(drop).ok_or("a bracket that nothing opens")?,
                _ => {}
            }
            if tokens.len() == MOST_TOKENS {
                return Err("over 1000 tokens in one tag");
            }
            let around = open.last().copied();
            if matches!(text, "(" | "[" | "{") {
                open.push(tokens.len());
            }
            tokens.push(Token { at, text, around });
            at += text.len();
        }
    }

    fn word(&self, index: usize) -> &'a str {
        self.tokens.get(index).map_or("", |token| token.text)
    }

    /// Writes the tag with its guards. `open`: the loops and conditions around it.
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
            // transformers adds no extension that knows them.
            "do" | "autoescape" => return Err("unknown tag"),
            // A scope of its own is all that these are.
            "generation" | "block" => out.push_str(" with "),
            "endgeneration" | "endblock" => out.push_str(" endwith "),
            _ => defaults = self.write_tokens(first, out)?,
        }
        out.push_str(self.end);
        if is_else_of_loop {
            // A scope of its own.
            open.pop();
            open.push(Open::Else);
            out.push_str("{% with ");
            out.push_str(self.end);
        }
        for (name, default) in defaults {
            // A default sees the parameters before it.
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

    /// A loop that remembers itself (`loop.changed(loop)`) is never freed, and `loop.cycle()` divides by zero.
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

    /// Writes the tokens, and gives the parameters of a macro that have defaults, and these.
    fn write_tokens(&self, first: &str, out: &mut String) -> Result<Vec<(&'a str, String)>, &'static str> {
        let mut guards = Guards::new(self.tokens.len());
        let indices = 0..self.tokens.len();
        // Level by level: what is within brackets, and the brackets themselves, stand in a row.
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); self.tokens.len() + 1];
        for index in indices.clone() {
            let around = self.tokens[index].around;
            rows[around.map_or(0, |open| open + 1)].push(index);
        }
        let place_of = |text: &str| rows[0].iter().copied().find(|index| self.word(*index) == text);
        let (equals, within) = (place_of("="), place_of("in"));
        // What is assigned to makes nothing.
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
                .any(|it| it > 0 && self.word(it - 1) == "." && self.word(it).starts_with('_'));
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

    /// Tokens with their guards, and what stands before each.
    fn text(&self, tokens: Range<usize>, guards: &Guards) -> String {
        let mut out = String::new();
        let mut at = match tokens.start {
            0 => 0,
            start => self.tokens[start - 1].at + self.tokens[start - 1].text.len(),
        };
        for index in tokens {
            let token = self.tokens[index];
            out.push_str(&self.inner[at..token.at]);
            out.push_str(&guards.before[index]);
            out.push_str(guards.instead[index].as_deref().unwrap_or(token.text));
            out.push_str(&guards.after[index]);
            at = token.at + token.text.len();
        }
        out
    }

    /// Brackets around a tuple that has none: `{{ 1, 2 }}`, `for x in 1, 2`.
    fn guard_tuple(&self, row: &[usize], from: usize, guards: &mut Guards) {
        let mut value = row.iter().copied().filter(|index| *index >= from);
        let value: Vec<usize> = match self.word(0) == "for" && self.is_block {
            true => value.by_ref().take_while(|index| !matches!(self.word(*index), "if" | "recursive")).collect(),
            false => value.collect(),
        };
        if let (Some(first), Some(last), true) =
            (value.first(), value.last(), value.iter().any(|index| self.word(*index) == ","))
        {
            guards.before[*first].insert_str(0, "((");
            guards.after[*last].push_str(&format!(")|{KEPT})"));
        }
    }

    /// The values of a `with` are all of the scope around it: each has a name of its own first.
    fn separate_with(&self, row: &[usize], guards: &mut Guards) {
        let parts: Vec<&[usize]> = row[1..].split(|index| self.word(*index) == ",").collect();
        let mut names = String::new();
        for (number, part) in parts.iter().enumerate() {
            let Some(equals) = part.iter().position(|index| self.word(*index) == "=").filter(|_| parts.len() > 1)
            else {
                return;
            };
            let (first, last) = (part[0], part[equals]);
            names.push_str(&format!(", {} = __with_{number}", self.text(first..last, guards).trim()));
        }
        for (number, part) in parts.iter().enumerate() {
            if let Some(equals) = part.iter().position(|index| self.word(*index) == "=") {
                for index in part[0]..part[equals] {
                    guards.instead[index] = Some(String::new());
                }
                guards.instead[part[0]] = Some(format!("__with_{number} "));
            }
        }
        if let Some(last) = guards.after.last_mut() {
            last.push_str(&names);
        }
    }

    /// Takes the defaults of a macro's parameters out of its head: minijinja evaluates them in no order of Python's.
    fn take_defaults(&self, guards: &mut Guards) -> Vec<(&'a str, String)> {
        let Some(open) = (0..self.tokens.len()).find(|index| self.word(*index) == "(") else { return Vec::new() };
        let within: Vec<usize> =
            (0..self.tokens.len()).filter(|index| self.tokens[*index].around == Some(open)).collect();
        let mut defaults = Vec::new();
        for part in within.split(|index| self.word(*index) == ",") {
            // The closing bracket is of the row around.
            if part.len() > 2 && self.word(part[1]) == "=" {
                let last = part[part.len() - 1];
                let default = self.text(part[2]..last + 1, guards);
                for index in part[2]..=last {
                    guards.instead[index] = Some(String::new());
                    guards.before[index].clear();
                    guards.after[index].clear();
                }
                guards.instead[part[2]] = Some(UNSET.to_owned());
                defaults.push((self.word(part[0]), default));
            }
        }
        defaults
    }

    /// Takes out `+` before a number, which minijinja does not know, and makes filters of attributes that may be
    /// methods.
    fn guard_signs_and_attributes(&self, row: &[usize], from: usize, guards: &mut Guards) {
        let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let ends_operand =
            |text: &str| (is_word(text) && !KEYWORDS.contains(&text)) || text.starts_with([')', ']', '}', '\'', '"']);
        for (place, index) in row.iter().enumerate().filter(|(_, index)| **index >= from) {
            let text = |place: usize| row.get(place).map_or("", |index| self.word(*index));
            let before = place.checked_sub(1).map_or("", text);
            match text(place) {
                "+" if !ends_operand(before) || (place == 1 && self.is_block) => {
                    guards.instead[*index] = Some(String::new());
                }
                "." if is_method(text(place + 1)) && text(place + 2) != "(" => {
                    let Some(begin) = self.operand(row, place) else { continue };
                    let is_loop = begin + 1 == place && text(begin) == "loop";
                    let is_name = text(place.saturating_sub(2)) == "|" || row[begin] < from;
                    if !is_loop && !is_name {
                        guards.before[row[begin]].push('(');
                        guards.instead[*index] = Some(format!("|{ATTRIBUTE}(\"{}\"))", text(place + 1)));
                        guards.instead[row[place + 1]] = Some(String::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// Where the operand begins whose attribute stands behind the dot at `dot`, in places of the row.
    fn operand(&self, row: &[usize], dot: usize) -> Option<usize> {
        let text = |place: usize| row.get(place).map_or("", |index| self.word(*index));
        let mut begin = dot;
        loop {
            let last = begin.checked_sub(1)?;
            let is_name = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            if matches!(text(last), ")" | "]" | "}") {
                begin = last.checked_sub(1)?;
                let before = begin.checked_sub(1).map_or("", text);
                let is_operand =
                    (is_name(before) && !KEYWORDS.contains(&before)) || before.starts_with([')', ']', '\'', '"']);
                let is_tag = begin == 1 && self.is_block;
                if !is_operand || is_tag || text(begin) == "{" {
                    return Some(begin);
                }
                // A filter's arguments: what stands before is not an operand.
                if begin >= 2 && text(begin - 2) == "|" {
                    return None;
                }
                continue;
            }
            if text(last).starts_with(['\'', '"']) {
                return Some(last);
            }
            if !is_name(text(last)) {
                return None;
            }
            match last.checked_sub(1).map(text) {
                Some(".") => begin = last - 1,
                Some("|") => return None,
                _ => return Some(last),
            }
        }
    }

    /// Guards what operators make of a row: the operands of `~`, and what `*` and `%` or, in a second pass, `+` make.
    fn guard_runs(&self, row: &[usize], is_sum: bool, guards: &mut Guards) {
        let mut run: Vec<usize> = Vec::new();
        let (mut previous, mut left, mut is_test) = ("", "", false);
        for index in row.iter().map(Some).chain([None]) {
            let text = index.map_or(",", |index| self.word(*index));
            let is_attribute = previous == ".";
            let is_unary = run.is_empty() || matches!(previous, "*" | "/" | "//" | "%" | "**" | "+" | "-" | "~");
            // What binds less.
            let is_end = match text {
                "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" => true,
                "~" => !is_sum,
                "+" | "-" => !is_sum && !is_unary,
                "in" | "not" => !is_attribute && !is_test,
                "if" | "else" | "elif" | "and" | "or" => !is_attribute,
                "recursive" => self.word(0) == "for" && !is_attribute,
                // The tag's name.
                _ => self.is_block && index == Some(&0),
            };
            is_test = text == "is" || (is_test && text == "not");
            if !is_end {
                run.extend(index);
            } else {
                // `*` that begins an argument unpacks it.
                let is_unpacked = run.first().is_some_and(|index| matches!(self.word(*index), "*" | "**"));
                let run_of = &run[usize::from(is_unpacked)..];
                if is_sum {
                    self.guard_sum(run_of, guards);
                } else {
                    self.guard_product(run_of, left == "~" || text == "~", guards);
                }
                run.clear();
                left = text;
            }
            previous = text;
        }
    }

    fn guard_sum(&self, run: &[usize], guards: &mut Guards) {
        let plus: Vec<usize> = run.iter().copied().filter(|index| self.word(*index) == "+").collect();
        let (Some(first), Some(last), false) = (run.first(), run.last(), plus.is_empty()) else {
            return;
        };
        let is_html =
            |pair: &[usize]| self.word(pair[0]) == "|" && matches!(self.word(pair[1]), "safe" | "e" | "escape");
        let is_other = |index: &usize| matches!(self.word(*index), "-" | "~");
        if run.windows(2).any(is_html) && !run.iter().any(is_other) {
            guards.before[*first].push_str(&format!("{SUM}("));
            plus.iter().for_each(|index| guards.instead[*index] = Some(",".to_owned()));
            guards.after[*last].push(')');
        } else {
            guards.wrap(*first, *last, KEPT);
        }
    }

    fn guard_product(&self, run: &[usize], is_joined: bool, guards: &mut Guards) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return;
        };
        let is_text = self.word(*first).starts_with(['\'', '"']);
        if let (true, Some(&percent)) = (is_text, run.get(1).filter(|index| self.word(**index) == "%")) {
            // What is behind it, up to what binds as strongly.
            let is_next = |index: &&usize| !matches!(self.word(**index), "*" | "/" | "//" | "%");
            if let Some(operand) = run[2..].iter().take_while(is_next).last() {
                guards.instead[percent] = Some(format!("|{PRINTF}("));
                guards.after[*operand].push(')');
            }
        }
        if is_joined && !(is_text && run.len() == 1) {
            guards.wrap(*first, *last, TEXT);
        } else if run.iter().any(|index| self.word(*index) == "*") {
            guards.wrap(*first, *last, KEPT);
        }
    }

    /// Guards lists, dicts and tuples that are written out, and what filters make.
    fn guard_literals_and_filters(&self, row: &[usize], from: usize, guards: &mut Guards) {
        for (place, index) in row.iter().enumerate().filter(|(_, index)| **index >= from) {
            let text = |place: usize| row.get(place).map_or("", |index| self.word(*index));
            let before = |back: usize| place.checked_sub(back).map_or("", text);
            let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            match text(place) {
                open @ ("[" | "{" | "(") => {
                    let is_keyword = matches!(before(1), "in" | "not" | "and" | "or" | "if" | "else" | "elif" | "is")
                        && before(2) != ".";
                    let follows_operand =
                        (is_word(before(1)) && !is_keyword) || before(1).starts_with([')', ']', '}', '\'', '"']);
                    let is_tuple = || {
                        let within = |token: &&Token<'_>| token.around == Some(*index) && token.text == ",";
                        self.tokens.iter().find(within).is_some()
                    };
                    if !follows_operand && (open != "(" || is_tuple()) {
                        // What follows takes the value: `[1][0]`, `{}.items()`.
                        guards.before[*index].push('(');
                        // What a `set` writes may be changed.
                        let list = if open == "[" && self.is_block && self.word(0) == "set" { LIST_FILTER } else { "" };
                        guards.after[row[place + 1]].push_str(&format!("|{KEPT}{list})"));
                    }
                }
                "|" if is_word(text(place + 1)) => {
                    let mut last = place + 1;
                    while text(last + 1) == "." {
                        last += 2;
                    }
                    if text(last + 1) == "(" {
                        last += 2;
                    }
                    let filter = match text(place + 1) {
                        "batch" | "items" | "map" | "reject" | "rejectattr" | "reverse" | "select" | "selectattr"
                        | "slice" | "unique" => GENERATED,
                        _ => KEPT,
                    };
                    if let Some(index) = row.get(last) {
                        guards.after[*index].push_str(&format!("|{filter}"));
                    }
                }
                _ => {}
            }
        }
    }
}

/// What an `else` belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    For,
    If,
    /// The `else` of a loop.
    Else,
}

/// The filter [`LIST`], behind a value.
const LIST_FILTER: &str = "|__list";

/// Words that no operand is.
const KEYWORDS: &[&str] = &["in", "not", "and", "or", "if", "else", "elif", "is", "recursive"];

fn is_method(name: &str) -> bool {
    DICT_METHODS.contains(&name) || LIST_METHODS.contains(&name)
}

/// What is written before, instead of and after each token.
struct Guards {
    before: Vec<String>,
    instead: Vec<Option<String>>,
    after: Vec<String>,
}

impl Guards {
    fn new(tokens: usize) -> Self {
        Self { before: vec![String::new(); tokens], instead: vec![None; tokens], after: vec![String::new(); tokens] }
    }

    /// From one token to another.
    fn wrap(&mut self, first: usize, last: usize, filter: &str) {
        if let (Some(before), true) = (self.before.get_mut(first), last < self.after.len()) {
            before.push('(');
            self.after[last].push_str(&format!(")|{filter}"));
        }
    }
}

/// Whether what is behind a number could be a part of it: minijinja takes `1.in` apart in one way and
/// `1. in` in another.
fn runs_on(after: Option<u8>, before: Option<u8>) -> bool {
    after.is_some_and(|it| it.is_ascii_alphanumeric() || it == b'_' || (it == b'.' && before != Some(b'.')))
}

fn regex(pattern: &str) -> Regex {
    // The patterns are constants, which the tests read.
    Regex::new(pattern).unwrap_or_else(|error| unreachable!("{error}"))
}

static OPEN: LazyLock<Regex> = LazyLock::new(|| regex(r"\{[{%#][-+]?"));
static RAW: LazyLock<Regex> = LazyLock::new(|| regex(r"^[ \t\n\r\x0C]*raw[ \t\n\r\x0C]*[-+]?%\}"));
static END_RAW: LazyLock<Regex> = LazyLock::new(|| regex(r"\{%[-+]?[ \t\n\r\x0C]*endraw[ \t\n\r\x0C]*[-+]?%\}"));
/// A name, a text, a number, an operator; one character of anything else.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"^(?s:[A-Za-z_][A-Za-z0-9_]*|'(?:[^'\\]|\\.)*'|",
        r#""(?:[^"\\]|\\.)*"|"#,
        r"0[xX][0-9a-fA-F_]+|0[oObB][0-9_]+|[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][-+]?[0-9_]+)?|",
        r"//|\*\*|==|!=|>=|<=|.)"
    ))
});
