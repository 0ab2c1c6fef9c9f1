//! GBNF as text to rules, as llama.cpp reads it (src/llama-grammar.cpp, `llama_grammar_parser`): its spelling, its rewriting of
//! repetitions and its limits, so that what is a grammar there is one here.

use std::collections::HashMap;

use super::left_recursion::LeftRecursion;

/// `MAX_REPETITION_THRESHOLD`.
const MAX_REPETITIONS: u64 = 2000;
/// Elements of all rules: repetitions of repetitions are written out.
const MAX_ELEMENTS: usize = 1 << 20;

/// One thing after another in an alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    /// A character of a class.
    Chars(Chars),
    /// Another rule.
    Rule(usize),
}

/// A class of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chars {
    /// All but these.
    pub(super) is_negated: bool,
    /// First and last of each range.
    pub(super) ranges: Vec<(u32, u32)>,
}

/// One thing after another.
pub(super) type Alternative = Vec<Element>;

/// Alternatives of each rule; the first of a text is `root`'s.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) rules: Vec<Vec<Alternative>>,
    pub(super) root: usize,
}

pub(super) fn rules(text: &str, root: &str) -> Result<Rules, String> {
    let mut parser = Parser {
        text: text.as_bytes(),
        at: 0,
        names: HashMap::new(),
        rules: Vec::new(),
        elements: 0,
    };
    parser.space(true);
    while !parser.is_at_end() {
        parser.rule()?;
    }
    let Some(&root) = parser.names.get(root) else {
        return Err(format!("it has no rule `{root}`"));
    };
    let undefined = parser
        .names
        .iter()
        .find(|(_, id)| parser.rules[**id].is_none());
    if let Some((name, _)) = undefined {
        return Err(format!("the rule `{name}` is not defined"));
    }
    let rules = parser.rules.into_iter().map(Option::unwrap_or_default);
    let rules: Vec<_> = rules.collect();
    LeftRecursion::look_for(&rules)?;
    Ok(Rules { rules, root })
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    names: HashMap<String, usize>,
    /// `None` while a rule was only referred to.
    rules: Vec<Option<Vec<Alternative>>>,
    /// Elements so far.
    elements: usize,
}

impl Parser<'_> {
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// An error at this place.
    fn expected<T>(&self, what: &str) -> Result<T, String> {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let rest = String::from_utf8_lossy(self.text.get(self.at..).unwrap_or_default());
        let found: String = rest.chars().take_while(|c| *c != '\n').take(20).collect();
        Err(if found.is_empty() {
            format!("line {line}: {what} expected, not the end of the line")
        } else {
            format!("line {line}: {what} expected, not {found:?}")
        })
    }

    /// Skips blanks and comments, and ends of lines where those are allowed.
    fn space(&mut self, newline_ok: bool) {
        loop {
            match self.peek() {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if newline_ok => self.at += 1,
                b'#' => {
                    while !self.is_at_end() && !matches!(self.peek(), b'\r' | b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let start = self.at;
        while is_word(self.peek()) {
            self.at += 1;
        }
        if start == self.at {
            return self.expected("a name");
        }
        Ok(String::from_utf8_lossy(&self.text[start..self.at]).into_owned())
    }

    fn number(&mut self) -> Result<u64, String> {
        let start = self.at;
        let mut number = 0_u64;
        while self.peek().is_ascii_digit() {
            let digit = u64::from(self.peek() - b'0');
            number = number.saturating_mul(10).saturating_add(digit);
            self.at += 1;
        }
        if start == self.at {
            return self.expected("a number");
        }
        Ok(number)
    }

    /// The rule of this name, which may be defined later.
    fn named(&mut self, name: String) -> usize {
        let next = self.rules.len();
        let id = *self.names.entry(name).or_insert(next);
        if id == next {
            self.rules.push(None);
        }
        id
    }

    /// A rule that has no name.
    fn unnamed(&mut self, alternatives: Vec<Alternative>) -> Result<usize, String> {
        self.count(alternatives.iter().map(Vec::len).sum())?;
        self.rules.push(Some(alternatives));
        Ok(self.rules.len() - 1)
    }

    fn count(&mut self, elements: usize) -> Result<(), String> {
        self.elements = self.elements.saturating_add(elements.saturating_add(1));
        if self.elements > MAX_ELEMENTS {
            return Err(format!("its rules have more than {MAX_ELEMENTS} elements"));
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name()?;
        let id = self.named(name);
        self.space(false);
        if !self.text[self.at..].starts_with(b"::=") {
            return self.expected("`::=`");
        }
        self.at += 3;
        self.space(true);
        let alternatives = self.alternatives(false)?;
        self.count(alternatives.iter().map(Vec::len).sum())?;
        self.rules[id] = Some(alternatives);
        match self.peek() {
            b'\r' | b'\n' => self.space(true),
            _ if self.is_at_end() => {}
            _ => return self.expected("the end of the rule"),
        }
        Ok(())
    }

    fn alternatives(&mut self, is_nested: bool) -> Result<Vec<Alternative>, String> {
        let mut alternatives = vec![self.sequence(is_nested)?];
        while self.peek() == b'|' {
            self.at += 1;
            self.space(true);
            alternatives.push(self.sequence(is_nested)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Alternative, String> {
        let mut sequence = Vec::new();
        // Where what a repetition repeats begins, and how many rules it stands for.
        let (mut last, mut weight) = (0, 1_u64);
        loop {
            let start = sequence.len();
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    while self.peek() != b'"' {
                        let c = self.character()?;
                        sequence.push(Element::Chars(Chars {
                            is_negated: false,
                            ranges: vec![(c, c)],
                        }));
                    }
                    self.at += 1;
                    (last, weight) = (start, 1);
                }
                b'[' => {
                    self.at += 1;
                    sequence.extend(self.class()?.map(Element::Chars));
                    (last, weight) = (start, 1);
                }
                b'.' => {
                    self.at += 1;
                    sequence.push(Element::Chars(Chars {
                        is_negated: true,
                        ranges: Vec::new(),
                    }));
                    (last, weight) = (start, 1);
                }
                b'(' => {
                    self.at += 1;
                    self.space(true);
                    let before = self.rules.len();
                    let inner = self.alternatives(true)?;
                    if self.peek() != b')' {
                        return self.expected("`)`");
                    }
                    self.at += 1;
                    let group = self.unnamed(inner)?;
                    sequence.push(Element::Rule(group));
                    (last, weight) = (start, (self.rules.len() - before) as u64);
                }
                byte if is_word(byte) => {
                    let name = self.name()?;
                    let rule = self.named(name);
                    sequence.push(Element::Rule(rule));
                    (last, weight) = (start, 1);
                }
                b'<' | b'!' => {
                    return Err(
                        "it names tokens of the vocabulary, which is not supported".to_owned()
                    );
                }
                b'*' | b'+' | b'?' | b'{' => {
                    if last == sequence.len() {
                        return self.expected("something to repeat");
                    }
                    let (least, most) = self.repetition(is_nested)?;
                    weight = self.repeat(&mut sequence, last, weight, least, most)?;
                    continue;
                }
                _ => return Ok(sequence),
            }
            self.space(is_nested);
        }
    }

    /// How often: at least, and at most.
    fn repetition(&mut self, is_nested: bool) -> Result<(u64, Option<u64>), String> {
        let kind = self.peek();
        self.at += 1;
        self.space(is_nested);
        match kind {
            b'*' => return Ok((0, None)),
            b'+' => return Ok((1, None)),
            b'?' => return Ok((0, Some(1))),
            _ => {}
        }
        let least = self.number()?;
        self.space(is_nested);
        let mut most = Some(least);
        if self.peek() == b',' {
            self.at += 1;
            self.space(is_nested);
            most = None;
            if self.peek().is_ascii_digit() {
                most = Some(self.number()?);
                self.space(is_nested);
            }
        }
        if self.peek() != b'}' {
            return self.expected("`}`");
        }
        self.at += 1;
        self.space(is_nested);
        if least > MAX_REPETITIONS {
            return Err(format!(
                "it has {least} repetitions, at most {MAX_REPETITIONS}"
            ));
        }
        // llama.cpp takes what is beyond as without an end.
        Ok((least, most.filter(|most| *most <= MAX_REPETITIONS)))
    }

    /// Writes a repetition of what follows `last` out, as llama.cpp does: `S{m,n}` becomes `S` m times and then rules `S' ::= S S'' |`.
    /// Returns how many rules it stands for.
    fn repeat(
        &mut self,
        sequence: &mut Alternative,
        last: usize,
        weight: u64,
        least: u64,
        most: Option<u64>,
    ) -> Result<u64, String> {
        let times = most.filter(|most| *most > 0).unwrap_or(least.max(1));
        let weight = weight.saturating_mul(times);
        if weight > MAX_REPETITIONS {
            return Err(format!(
                "its repetitions of repetitions come to more than {MAX_REPETITIONS}"
            ));
        }
        let repeated = sequence.split_off(last);
        for _ in 0..least {
            self.count(repeated.len())?;
            sequence.extend_from_slice(&repeated);
        }
        let mut optional = None;
        let Some(most) = most else {
            let id = self.rules.len();
            let mut again = repeated;
            again.push(Element::Rule(id));
            let id = self.unnamed(vec![again, Vec::new()])?;
            sequence.push(Element::Rule(id));
            return Ok(weight);
        };
        for _ in least..most {
            let mut once = repeated.clone();
            once.extend(optional.map(Element::Rule));
            optional = Some(self.unnamed(vec![once, Vec::new()])?);
        }
        sequence.extend(optional.map(Element::Rule));
        Ok(weight)
    }

    /// The rest of a class, whose bracket is read; `None` for an empty one.
    fn class(&mut self) -> Result<Option<Chars>, String> {
        let is_negated = self.peek() == b'^';
        self.at += usize::from(is_negated);
        let mut ranges = Vec::new();
        while self.peek() != b']' {
            let first = self.character()?;
            let is_range =
                self.peek() == b'-' && self.text.get(self.at + 1).is_some_and(|it| *it != b']');
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            ranges.push((first, last));
        }
        self.at += 1;
        Ok((!ranges.is_empty()).then_some(Chars { is_negated, ranges }))
    }

    /// One character, which may be escaped.
    fn character(&mut self) -> Result<u32, String> {
        if self.peek() != b'\\' {
            let rest = self.text.get(self.at..).unwrap_or_default();
            // The whole text was a `str`, and only whole characters are taken of it.
            let next = std::str::from_utf8(rest)
                .ok()
                .and_then(|it| it.chars().next());
            let Some(c) = next else {
                return self.expected("a character");
            };
            self.at += c.len_utf8();
            return Ok(u32::from(c));
        }
        let escape = self.text.get(self.at + 1).copied().unwrap_or(0);
        let digits = match escape {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let code = self.text.get(self.at + 2..self.at + 2 + digits);
            let code = code.and_then(|code| std::str::from_utf8(code).ok());
            let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
            let Some(code) = code else {
                return self.expected("hexadecimal digits");
            };
            self.at += 2 + digits;
            return Ok(code);
        }
        let c = match escape {
            b't' => b'\t',
            b'r' => b'\r',
            b'n' => b'\n',
            b'\\' | b'"' | b'[' | b']' | b'-' => escape,
            _ => return self.expected("an escape that GBNF has"),
        };
        self.at += 2;
        Ok(u32::from(c))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
