//! Rewrites syntax that minijinja reads in another way than jinja2: tuples without brackets, the scopes of `with` and
//! of defaults, signs before numbers, and attributes that are methods.

use super::guards::Guards;
use super::names::{ATTRIBUTE, ITEMS, KEPT, UNSET};
use super::tag::{KEYWORDS, Tag};
use crate::jinja::methods::{DICT_METHODS, LIST_METHODS};

fn is_method(name: &str) -> bool {
    DICT_METHODS.contains(&name) || LIST_METHODS.contains(&name)
}

impl<'a> Tag<'a> {
    /// Adds brackets around a tuple that has none: `{{ 1, 2 }}`, `for x in 1, 2`.
    pub(super) fn guard_tuple(&self, row: &[usize], from: usize, guards: &mut Guards) {
        let value = self.value_from(row, from);
        if let (Some(first), Some(last), true) =
            (value.first(), value.last(), value.iter().any(|index| self.word(*index) == ","))
        {
            guards.before[*first].insert_str(0, "((");
            guards.after[*last].push_str(&format!(")|{KEPT})"));
        }
    }

    /// Guards the value over which a loop iterates.
    pub(super) fn guard_iterated(&self, row: &[usize], from: usize, guards: &mut Guards) {
        let value = self.value_from(row, from);
        if let (Some(first), Some(last)) = (value.first(), value.last()) {
            guards.before[*first].insert(0, '(');
            guards.after[*last].push_str(&format!(")|{ITEMS}"));
        }
    }

    /// The tokens of a row from `from` on. In the tag of a loop, the tokens of the condition are left out.
    fn value_from(&self, row: &[usize], from: usize) -> Vec<usize> {
        let is_loop = self.is_block && self.word(0) == "for";
        let is_behind = |index: &usize| is_loop && matches!(self.word(*index), "if" | "recursive");
        row.iter().copied().filter(|index| *index >= from).take_while(|index| !is_behind(index)).collect()
    }

    /// In jinja2, all values of a `with` are evaluated in the outer scope. So each value first gets a separate name.
    pub(super) fn separate_with(&self, row: &[usize], guards: &mut Guards) {
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

    /// Moves the defaults of a macro's parameters into its body, because minijinja evaluates defaults in another order
    /// than Python.
    pub(super) fn take_defaults(&self, guards: &mut Guards) -> Vec<(&'a str, String)> {
        let Some(open) = (0..self.tokens.len()).find(|index| self.word(*index) == "(") else { return Vec::new() };
        let within: Vec<usize> =
            (0..self.tokens.len()).filter(|index| self.tokens[*index].around == Some(open)).collect();
        let mut defaults = Vec::new();
        for part in within.split(|index| self.word(*index) == ",") {
            // The closing bracket belongs to the outer row.
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

    /// Removes a `+` before a number, because minijinja does not accept it. Makes filters of attributes that may be
    /// methods.
    pub(super) fn guard_signs_and_attributes(&self, row: &[usize], from: usize, guards: &mut Guards) {
        let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let ends_operand =
            |text: &str| (is_word(text) && !KEYWORDS.contains(&text)) || text.starts_with([')', ']', '}', '\'', '"']);
        for (place, index) in row.iter().enumerate().filter(|(_, index)| **index >= from) {
            let text = |place: usize| row.get(place).map_or("", |index| self.word(*index));
            let before = place.checked_sub(1).map_or("", text);
            match text(place) {
                "+" if !ends_operand(before) || (*index == 1 && self.is_block) => {
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

    /// Where the operand before the dot begins. `dot` and the result are positions in the row.
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
                let is_tag = row[begin] == 1 && self.is_block;
                if !is_operand || is_tag || text(begin) == "{" {
                    return Some(begin);
                }
                // Between these brackets are the arguments of a filter, so no operand comes directly before them.
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
}
