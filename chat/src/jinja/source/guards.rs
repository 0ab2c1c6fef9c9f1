//! Inserts calls of guards into a tag, around expressions that make values out of other values.

use std::ops::Range;

use super::names::{GENERATED, KEPT, PRINTF, SUM, TEXT};
use super::tag::{Tag, Token};

/// The filter [`LIST`], as it is written after a value.
const LIST_FILTER: &str = "|__list";

/// For each token, the texts that are written before it, in place of it, and after it.
pub(super) struct Guards {
    pub(super) before: Vec<String>,
    pub(super) instead: Vec<Option<String>>,
    pub(super) after: Vec<String>,
}

impl Guards {
    pub(super) fn new(tokens: usize) -> Self {
        Self { before: vec![String::new(); tokens], instead: vec![None; tokens], after: vec![String::new(); tokens] }
    }

    /// Puts a range of tokens in brackets, and adds a filter.
    pub(super) fn wrap(&mut self, first: usize, last: usize, filter: &str) {
        self.call("", first, last, filter);
    }

    /// Makes a range of tokens the arguments of a function, and adds a filter to its result. The guards that these
    /// tokens have already are inside the brackets.
    fn call(&mut self, function: &str, first: usize, last: usize, filter: &str) {
        if let (Some(before), true) = (self.before.get_mut(first), last < self.after.len()) {
            before.insert_str(0, &format!("{function}("));
            self.after[last].push_str(&format!(")|{filter}"));
        }
    }
}

impl Tag<'_> {
    /// The text of some tokens, with their guards and the white space before each token.
    pub(super) fn text(&self, tokens: Range<usize>, guards: &Guards) -> String {
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

    /// Guards the operands of `~`, and the results of `*` and `%`; with `is_sum`, the results of `+`.
    pub(super) fn guard_runs(&self, row: &[usize], is_sum: bool, guards: &mut Guards) {
        let mut run: Vec<usize> = Vec::new();
        let (mut previous, mut left, mut is_test) = ("", "", false);
        for index in row.iter().map(Some).chain([None]) {
            let text = index.map_or(",", |index| self.word(*index));
            let is_attribute = previous == ".";
            let is_unary = run.is_empty() || matches!(previous, "*" | "/" | "//" | "%" | "**" | "+" | "-" | "~");
            // An operator of lower precedence ends the run.
            let is_end = match text {
                "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" => true,
                "~" => !is_sum,
                "+" | "-" => !is_sum && !is_unary,
                "in" | "not" => !is_attribute && !is_test,
                "if" | "else" | "elif" | "and" | "or" => !is_attribute,
                "recursive" => self.word(0) == "for" && !is_attribute,
                // The name of the tag is not an operand.
                _ => self.is_block && index == Some(&0),
            };
            is_test = text == "is" || (is_test && text == "not");
            if !is_end {
                run.extend(index);
            } else {
                // At the beginning of an argument, a `*` unpacks the argument.
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
        // `-` is not defined for texts, so nothing in such a run is marked as HTML.
        if self.marks_html && !run.iter().any(|index| self.word(*index) == "-") {
            // A sign before a value has been removed and adds nothing.
            for index in plus {
                guards.instead[index].get_or_insert_with(|| ",".to_owned());
            }
            guards.call(SUM, *first, *last, KEPT);
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
            // The operand after `%`, up to the next operator of the same precedence.
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

    /// Guards lists, dicts and tuples that are written literally, and the results of filters.
    pub(super) fn guard_literals_and_filters(&self, row: &[usize], from: usize, guards: &mut Guards) {
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
                        // The literal is put in brackets, because a subscript or a method may follow it: `[1][0]`,
                        // `{}.items()`.
                        guards.before[*index].push('(');
                        // If a `set` creates a list, the template may change this list.
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
