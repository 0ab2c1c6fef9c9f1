//! GBNF, llama.cpp's notation of grammars, as a grammar of llguidance.
//!
//! In: the text of a grammar, as llama.cpp reads it (src/llama-grammar.cpp, `llama_grammar_parser`). Out: the same in
//! Lark. A group is a rule without a name. A rule that does not reach itself is a regular expression: a terminal of
//! Lark, in which every reading of a text is followed. Where `root` is one, that is all there is. In other grammars,
//! terminals take the longest text that they match; so that one does not take the blanks that the next one needs,
//! optional and repeated blanks are left to the rules.

use std::collections::HashMap;
use std::fmt::Write;

use super::compile::MAX_NESTING;

/// llama.cpp's `MAX_REPETITION_THRESHOLD`.
const MAX_REPETITIONS: u32 = 2000;

/// One thing after another.
type Sequence = Vec<Element>;

/// What comes `least` to `most` times.
struct Element {
    atom: Atom,
    least: u32,
    most: Option<u32>,
}

enum Atom {
    /// A regular expression for a literal or a class.
    Text {
        regex: String,
        is_blank: bool,
    },
    Rule(usize),
}

impl Element {
    fn once(atom: Atom) -> Self {
        let (least, most) = (1, Some(1));
        Self { atom, least, most }
    }

    fn is_once(&self) -> bool {
        (self.least, self.most) == (1, Some(1))
    }

    fn is_blank(&self) -> bool {
        matches!(self.atom, Atom::Text { is_blank: true, .. })
    }

    fn rule(&self) -> Option<usize> {
        match self.atom {
            Atom::Rule(rule) => Some(rule),
            Atom::Text { .. } => None,
        }
    }
}

#[derive(Default)]
struct Rule {
    name: String,
    /// Where it is first named.
    at: usize,
    /// `None` while it was only referred to.
    sequences: Option<Vec<Sequence>>,
}

impl Rule {
    fn elements(&self) -> impl Iterator<Item = &Element> {
        self.sequences.iter().flatten().flatten()
    }

    /// Whether it leaves blanks out or repeats them, or has nothing else.
    fn has_loose_blanks(&self) -> bool {
        self.elements().all(Element::is_blank) || self.elements().any(|it| it.is_blank() && !it.is_once())
    }
}

/// The grammar in Lark.
pub(super) fn lark(grammar: &str) -> Result<String, String> {
    let text = grammar;
    let parser = Parser { text, ..Parser::default() };
    let rules = parser.rules()?;
    let Some(root) = rules.iter().position(|it| it.name == "root") else {
        return Err("it has no rule `root`".to_owned());
    };
    if let Some(rule) = rules.iter().find(|it| it.sequences.is_none()) {
        let (name, line) = (&rule.name, line(grammar, rule.at));
        return Err(format!("line {line}: the rule `{name}` is not defined"));
    }
    let mut is_terminal = terminals(&rules, |_| true);
    if !is_terminal[root] {
        is_terminal = terminals(&rules, |rule| !rule.has_loose_blanks());
    }
    let writer = Writer { is_terminal: &is_terminal, lark: String::new(), parts: 0 };
    Ok(writer.grammar(&rules, root))
}

/// Which rules are regular expressions: those that `may` be, and name only such.
fn terminals(rules: &[Rule], may: impl Fn(&Rule) -> bool) -> Vec<bool> {
    let mut is_terminal = vec![false; rules.len()];
    let mut users = vec![Vec::new(); rules.len()];
    let mut missing = vec![0_usize; rules.len()];
    for (user, rule) in rules.iter().enumerate() {
        for used in rule.elements().filter_map(Element::rule) {
            users[used].push(user);
            missing[user] += 1;
        }
    }
    let mut ready: Vec<_> = (0..rules.len()).filter(|it| missing[*it] == 0).collect();
    while let Some(next) = ready.pop() {
        if !may(&rules[next]) {
            continue;
        }
        is_terminal[next] = true;
        for &user in &users[next] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(user);
            }
        }
    }
    is_terminal
}

/// Lark, line by line.
struct Writer<'a> {
    is_terminal: &'a [bool],
    lark: String,
    /// Terminals of parts of rules, so far.
    parts: usize,
}

impl Writer<'_> {
    fn grammar(mut self, rules: &[Rule], root: usize) -> String {
        // As in llama.cpp, the model chooses how a text that is certain is made of tokens.
        self.lark.push_str("%llguidance {\"no_forcing\": true}\n");
        self.line("start", &self.name(root));
        for (id, rule) in rules.iter().enumerate() {
            let sequences = rule.sequences.iter().flatten();
            let sequences: Vec<_> = if self.is_terminal[id] {
                sequences.map(|it| self.regex(it)).collect()
            } else {
                sequences.map(|it| self.sequence(it)).collect()
            };
            self.line(&self.name(id), &sequences.join(" | "));
        }
        self.lark
    }

    fn line(&mut self, name: &str, what: &str) {
        for text in [name, ": ", what, "\n"] {
            self.lark.push_str(text);
        }
    }

    fn name(&self, rule: usize) -> String {
        format!("{}{rule}", if self.is_terminal[rule] { 'T' } else { 'r' })
    }

    /// A sequence of a rule: what is regular in it, as long as it is, becomes a terminal.
    fn sequence(&mut self, sequence: &[Element]) -> String {
        let is_terminal = self.is_terminal;
        let is_regular = |element: &Element| match element.atom {
            Atom::Rule(rule) => is_terminal[rule],
            Atom::Text { is_blank, .. } => element.is_once() || !is_blank,
        };
        let mut parts = Vec::new();
        for chunk in sequence.chunk_by(|one, next| is_regular(one) && is_regular(next)) {
            let regex = self.regex(chunk);
            if chunk.len() > 1 || !chunk[0].is_once() && is_regular(&chunk[0]) {
                let name = format!("P{}", self.parts);
                self.parts += 1;
                self.line(&name, &regex);
                parts.push(name);
            } else {
                parts.push(regex);
            }
        }
        joined(&parts)
    }

    /// Elements in Lark's notation.
    fn regex(&self, sequence: &[Element]) -> String {
        let parts = sequence.iter().map(|element| {
            let atom = match &element.atom {
                Atom::Text { regex, .. } if regex.is_empty() => "\"\"".to_owned(),
                Atom::Text { regex, .. } => format!("/{regex}/"),
                Atom::Rule(rule) => self.name(*rule),
            };
            match (element.least, element.most) {
                (1, Some(1)) => atom,
                (0, None) => atom + "*",
                (1, None) => atom + "+",
                (0, Some(1)) => atom + "?",
                (least, None) => format!("{atom}{{{least},}}"),
                (least, Some(most)) => format!("{atom}{{{least},{most}}}"),
            }
        });
        joined(&parts.collect::<Vec<_>>())
    }
}

/// Parts one after the other; Lark wants something for nothing.
fn joined(parts: &[String]) -> String {
    match parts {
        [] => "\"\"".to_owned(),
        parts => parts.join(" "),
    }
}

#[derive(Default)]
struct Parser<'a> {
    text: &'a str,
    at: usize,
    ids: HashMap<&'a str, usize>,
    rules: Vec<Rule>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next character; NUL at the end.
    fn peek(&self) -> char {
        self.rest().chars().next().unwrap_or('\0')
    }

    /// An error of the grammar here.
    fn error<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("line {}: {what}", line(self.text, self.at)))
    }

    /// An error at this place.
    fn expected<T>(&self, what: &str) -> Result<T, String> {
        let line = self.rest().lines().next().unwrap_or_default();
        let found: String = line.chars().take(20).collect();
        match found.as_str() {
            "" => self.error(&format!("{what} expected, not the end of the line")),
            found => self.error(&format!("{what} expected, not {found:?}")),
        }
    }

    /// Skips blanks and comments, and ends of lines where those are allowed.
    fn space(&mut self, newline_ok: bool) {
        loop {
            match self.peek() {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if newline_ok => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    /// Takes a text, if it is next.
    fn take(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    /// As many characters as are of a kind.
    fn word(&mut self, what: &str, is_of: fn(char) -> bool) -> Result<&'a str, String> {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !is_of(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            return self.expected(what);
        }
        self.at += word.len();
        Ok(word)
    }

    /// The rule that is named here, which may be defined later.
    fn named(&mut self) -> Result<usize, String> {
        let at = self.at;
        let name = self.word("a name", is_word)?;
        Ok(*self.ids.entry(name).or_insert_with(|| {
            self.rules.push(Rule { name: name.to_owned(), at, sequences: None });
            self.rules.len() - 1
        }))
    }

    fn unnamed(&mut self, sequences: Vec<Sequence>) -> Element {
        self.rules.push(Rule { sequences: Some(sequences), ..Rule::default() });
        Element::once(Atom::Rule(self.rules.len() - 1))
    }

    fn rules(mut self) -> Result<Vec<Rule>, String> {
        self.space(true);
        while !self.rest().is_empty() {
            let id = self.named()?;
            self.space(false);
            if !self.take("::=") {
                return self.expected("`::=`");
            }
            self.space(true);
            self.rules[id].sequences = Some(self.sequences(false)?);
            if !self.rest().is_empty() && !matches!(self.peek(), '\r' | '\n') {
                return self.expected("the end of the rule");
            }
            self.space(true);
        }
        Ok(self.rules)
    }

    fn sequences(&mut self, is_nested: bool) -> Result<Vec<Sequence>, String> {
        let mut sequences = vec![self.sequence(is_nested)?];
        while self.take("|") {
            self.space(true);
            sequences.push(self.sequence(is_nested)?);
        }
        Ok(sequences)
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Sequence, String> {
        let mut sequence = Sequence::new();
        loop {
            let element = match self.peek() {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    text(class(true, &[]), false)
                }
                '(' => self.group()?,
                c if is_word(c) => Element::once(Atom::Rule(self.named()?)),
                '<' | '!' => {
                    return self.error("tokens of the vocabulary are not supported");
                }
                '*' | '+' | '?' | '{' => {
                    let Some(repeated) = sequence.pop() else {
                        return self.expected("something to repeat");
                    };
                    self.repeated(repeated, is_nested)?
                }
                _ => return Ok(sequence),
            };
            self.space(is_nested);
            sequence.push(element);
        }
    }

    fn group(&mut self) -> Result<Element, String> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return self.error(&format!("groups nested more than {MAX_NESTING} deep"));
        }
        self.at += 1;
        self.space(true);
        let inner = self.sequences(true)?;
        if !self.take(")") {
            return self.expected("`)`");
        }
        self.depth -= 1;
        Ok(self.unnamed(inner))
    }

    /// An element with the repetition that follows it.
    fn repeated(&mut self, mut element: Element, is_nested: bool) -> Result<Element, String> {
        if !element.is_once() {
            element = self.unnamed(vec![vec![element]]);
        }
        (element.least, element.most) = match self.peek() {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => return self.braces(element, is_nested),
        };
        self.at += 1;
        Ok(element)
    }

    fn braces(&mut self, mut element: Element, is_nested: bool) -> Result<Element, String> {
        self.at += 1;
        self.space(is_nested);
        let least = self.number()?;
        self.space(is_nested);
        let mut most = Some(least);
        if self.take(",") {
            self.space(is_nested);
            most = match self.peek() {
                '}' => None,
                _ => Some(self.number()?),
            };
            self.space(is_nested);
        }
        if !self.take("}") {
            return self.expected("`}`");
        }
        if least > MAX_REPETITIONS {
            return self.error(&format!("more than {MAX_REPETITIONS} repetitions"));
        }
        if most.is_some_and(|most| most < least) {
            return self.error("a repetition whose most is below its least");
        }
        if most == Some(0) {
            return Ok(text(String::new(), false));
        }
        // llama.cpp takes what is beyond as without an end.
        element.most = most.filter(|most| *most <= MAX_REPETITIONS);
        element.least = least;
        Ok(element)
    }

    fn number(&mut self) -> Result<u32, String> {
        let digits = self.word("a number", |c| c.is_ascii_digit())?;
        Ok(digits.parse().unwrap_or(u32::MAX))
    }

    fn literal(&mut self) -> Result<Element, String> {
        self.at += 1;
        let (mut regex, mut is_blank) = (String::new(), true);
        while !self.take("\"") {
            let code = self.character()?;
            is_blank &= is_blank_code(code);
            match char::from_u32(code) {
                // A slash would end the expression.
                Some(c) if c != '/' && !c.is_control() => {
                    regex.push_str(&regex_lite::escape(c.encode_utf8(&mut [0; 4])));
                }
                _ => regex.push_str(&class(false, &[(code, code)])),
            }
        }
        Ok(text(regex, is_blank))
    }

    fn class(&mut self) -> Result<Element, String> {
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.peek() == '-' && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Ok(text(String::new(), false));
        }
        let is_blank = |&(low, high): &(u32, u32)| low == high && is_blank_code(low);
        let is_blank = !is_negated && ranges.iter().all(is_blank);
        Ok(text(class(is_negated, &ranges), is_blank))
    }

    /// One character, which may be escaped.
    fn character(&mut self) -> Result<u32, String> {
        let mut chars = self.rest().chars();
        let escape = match chars.next() {
            Some('\\') => chars.next(),
            Some(c) => {
                self.at += c.len_utf8();
                return Ok(u32::from(c));
            }
            None => return self.expected("a character"),
        };
        let digits = match escape {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t' | 'r' | 'n' | '\\' | '"' | '[' | ']' | '-') => 0,
            _ => return self.expected("an escape that GBNF has"),
        };
        self.at += 2;
        Ok(match escape {
            Some('t') => 9,
            Some('n') => 10,
            Some('r') => 13,
            Some(c) if digits == 0 => u32::from(c),
            _ => {
                let code = self.rest().get(..digits).unwrap_or_default();
                if code.is_empty() || !code.bytes().all(|it| it.is_ascii_hexdigit()) {
                    return self.expected("hexadecimal digits");
                }
                self.at += digits;
                u32::from_str_radix(code, 16).unwrap_or(u32::MAX)
            }
        })
    }
}

fn line(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

fn is_blank_code(code: u32) -> bool {
    matches!(code, 0x9 | 0xA | 0xD | 0x20)
}

fn text(regex: String, is_blank: bool) -> Element {
    Element::once(Atom::Text { regex, is_blank })
}

/// A class of characters, of those that there are: a code without a character matches nothing, as in llama.cpp.
fn class(is_negated: bool, ranges: &[(u32, u32)]) -> String {
    const LAST: u32 = 0x10_FFFF;
    let mut class = String::new();
    for &(low, high) in ranges {
        let low = (low..=LAST).find_map(char::from_u32);
        let high = (0..=high.min(LAST)).rev().find_map(char::from_u32);
        if let (Some(low), Some(high)) = (low.map(u32::from), high.map(u32::from))
            && low <= high
        {
            let _ = write!(class, "\\U{low:08x}-\\U{high:08x}");
        }
    }
    let not = if is_negated != class.is_empty() { "^" } else { "" };
    if class.is_empty() {
        class.push_str("\\U00000000-\\U0010ffff");
    }
    format!("[{not}{class}]")
}
