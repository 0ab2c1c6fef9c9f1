//! Parses a grammar as llama.cpp does (src/llama-grammar.cpp, `llama_grammar_parser`).

use std::collections::HashMap;

use super::expr::{Chars, Expr, Rule};
use super::place::place;
use crate::decode::constraint::unenforced::Unenforced;

/// llama.cpp's `MAX_REPETITION_THRESHOLD`.
const MAX_REPETITIONS: u32 = 2000;
/// Maximum nesting of groups.
const MAX_NESTING: usize = 100;

/// Finds the token of a text such as `<think>`, or the reason why there is none.
pub(in crate::decode::constraint) type TokenOf<'a> = &'a dyn Fn(&str) -> Result<u32, String>;

/// Parses the rules of a grammar. The first rule is the one named `root`.
pub(super) fn rules(text: &str, token_of: TokenOf<'_>) -> Result<Vec<Rule>, Unenforced> {
    let mut parser = Parser { text, at: 0, ids: HashMap::new(), rules: Vec::new(), depth: 0, token_of };
    // `root` is rule 0, no matter where the grammar defines it.
    parser.rule("root", 0);
    parser.grammar()?;
    if parser.rules[0].body.is_none() {
        return Err("it has no rule `root`".to_owned().into());
    }
    let named = parser.rules.into_iter().map(|Named { name, at, body }| match body {
        Some(body) => Ok(Rule { name, at, body }),
        None => Err(place(text, at).refused(format!("the rule `{name}` is not defined"))),
    });
    named.collect()
}

/// A rule whose name was mentioned. It has a body as soon as its definition was read.
struct Named {
    name: String,
    at: usize,
    body: Option<Expr>,
}

struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
    ids: HashMap<&'a str, usize>,
    rules: Vec<Named>,
    /// Number of open groups.
    depth: usize,
    token_of: TokenOf<'a>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next character; NUL at the end.
    fn peek(&self) -> char {
        self.rest().chars().next().unwrap_or('\0')
    }

    /// An error at the present place.
    fn error<T>(&self, reason: impl Into<String>) -> Result<T, Unenforced> {
        Err(place(self.text, self.at).refused(reason))
    }

    /// An error because something is missing at the present place.
    fn expected<T>(&self, what: &str) -> Result<T, Unenforced> {
        let line = self.rest().lines().next().unwrap_or_default();
        let found: String = line.chars().take(20).collect();
        match found.as_str() {
            "" if self.rest().is_empty() => self.error(format!("{what} expected, not the end of the grammar")),
            "" => self.error(format!("{what} expected, not the end of the line")),
            found => self.error(format!("{what} expected, not {found:?}")),
        }
    }

    /// Skips blanks and comments. Also skips line ends if they are allowed here.
    fn skip_space(&mut self, is_multiline: bool) {
        loop {
            match self.peek() {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if is_multiline => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    /// Consumes `text` if it comes next.
    fn take(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    /// Consumes as many matching characters as possible, but at least one.
    fn run(&mut self, what: &str, is_of: fn(char) -> bool) -> Result<&'a str, Unenforced> {
        let rest = self.rest();
        let run = &rest[..rest.find(|c| !is_of(c)).unwrap_or(rest.len())];
        if run.is_empty() {
            return self.expected(what);
        }
        self.at += run.len();
        Ok(run)
    }

    /// The index of a rule, which may be defined later.
    fn rule(&mut self, name: &'a str, at: usize) -> usize {
        *self.ids.entry(name).or_insert_with(|| {
            self.rules.push(Named { name: name.to_owned(), at, body: None });
            self.rules.len() - 1
        })
    }

    fn rule_named_here(&mut self) -> Result<usize, Unenforced> {
        let at = self.at;
        let name = self.run("the name of a rule", is_word)?;
        let rule = self.rule(name, at);
        Ok(rule)
    }

    fn grammar(&mut self) -> Result<(), Unenforced> {
        // A byte order mark is not part of the grammar.
        self.take("\u{feff}");
        self.skip_space(true);
        while !self.rest().is_empty() {
            let at = self.at;
            let rule = self.rule_named_here()?;
            self.skip_space(false);
            if !self.take("::=") {
                return self.expected("`::=`");
            }
            self.skip_space(true);
            let body = self.alternatives(false)?;
            // The last definition of a rule wins, as in llama.cpp.
            self.rules[rule].body = Some(body);
            self.rules[rule].at = at;
            if !self.rest().is_empty() && !matches!(self.peek(), '\r' | '\n') {
                return self.expected("the end of the rule");
            }
            self.skip_space(true);
        }
        Ok(())
    }

    fn alternatives(&mut self, is_nested: bool) -> Result<Expr, Unenforced> {
        let mut alternatives = vec![self.sequence(is_nested)?];
        while self.take("|") {
            self.skip_space(true);
            alternatives.push(self.sequence(is_nested)?);
        }
        Ok(Expr::choice(alternatives))
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Expr, Unenforced> {
        let mut parts: Vec<Expr> = Vec::new();
        loop {
            let part = match self.peek() {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    Expr::Chars(Chars::all())
                }
                '(' => self.group()?,
                '<' | '!' => self.token()?,
                c if is_word(c) => Expr::Rule(self.rule_named_here()?),
                '*' | '+' | '?' | '{' => {
                    let Some(repeated) = parts.pop() else {
                        return self.expected("something to repeat");
                    };
                    self.repetition(repeated, is_nested)?
                }
                _ => return Ok(Expr::sequence(parts)),
            };
            self.skip_space(is_nested);
            parts.push(part);
        }
    }

    fn group(&mut self) -> Result<Expr, Unenforced> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return self.error(format!("groups are nested more than {MAX_NESTING} deep"));
        }
        self.at += 1;
        self.skip_space(true);
        let inner = self.alternatives(true)?;
        if !self.take(")") {
            return self.expected("`)`");
        }
        self.depth -= 1;
        Ok(inner)
    }

    /// Applies the repetition that follows a part.
    fn repetition(&mut self, part: Expr, is_nested: bool) -> Result<Expr, Unenforced> {
        let (least, most) = match self.peek() {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => return self.braces(part, is_nested),
        };
        self.at += 1;
        Ok(Expr::repeat(part, least, most))
    }

    fn braces(&mut self, part: Expr, is_nested: bool) -> Result<Expr, Unenforced> {
        let at = self.at;
        self.at += 1;
        self.skip_space(is_nested);
        let least = self.number()?;
        self.skip_space(is_nested);
        let mut most = Some(least);
        if self.take(",") {
            self.skip_space(is_nested);
            most = match self.peek() {
                '}' => None,
                _ => Some(self.number()?),
            };
            self.skip_space(is_nested);
        }
        if !self.take("}") {
            return self.expected("`}`");
        }
        let refused = |reason: String| Err(place(self.text, at).refused(reason));
        if least > MAX_REPETITIONS {
            return refused(format!("{least} repetitions are more than {MAX_REPETITIONS}"));
        }
        if let Some(most) = most.filter(|most| *most < least) {
            return refused(format!("the maximum of {most} repetitions is below the minimum of {least}"));
        }
        if most == Some(0) {
            return Ok(Expr::empty());
        }
        // llama.cpp treats a larger `most` as unlimited.
        Ok(Expr::repeat(part, least, most.filter(|most| *most <= MAX_REPETITIONS)))
    }

    fn number(&mut self) -> Result<u32, Unenforced> {
        let digits = self.run("a number", |c| c.is_ascii_digit())?;
        // A number of more than 32 bits is replaced by the largest number of 32 bits. The two numbers have the same
        // meaning: both are refused, or both mean "unlimited".
        Ok(digits.parse().unwrap_or(u32::MAX))
    }

    fn literal(&mut self) -> Result<Expr, Unenforced> {
        self.at += 1;
        let mut characters = Vec::new();
        while !self.take("\"") {
            let code = self.character()?;
            characters.push(Expr::Chars(Chars::from_ranges(&[(code, code)])));
        }
        // A repetition applies to the whole literal.
        Ok(Expr::sequence(characters))
    }

    fn class(&mut self) -> Result<Expr, Unenforced> {
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
        // llama.cpp reads `[]` and `[^]` as empty.
        if ranges.is_empty() {
            return Ok(Expr::empty());
        }
        let chars = Chars::from_ranges(&ranges);
        Ok(Expr::Chars(if is_negated { chars.negated() } else { chars }))
    }

    /// Reads one character, which may be escaped.
    fn character(&mut self) -> Result<u32, Unenforced> {
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
            _ => {
                return self.expected("one of the escapes \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH");
            }
        };
        self.at += 2;
        match escape {
            Some('t') => Ok(0x9),
            Some('n') => Ok(0xA),
            Some('r') => Ok(0xD),
            Some(c) if digits == 0 => Ok(u32::from(c)),
            _ => {
                let code = self.rest().get(..digits).unwrap_or_default();
                if code.is_empty() || !code.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return self.expected(&format!("{digits} hexadecimal digits"));
                }
                self.at += digits;
                Ok(u32::from_str_radix(code, 16).unwrap_or(u32::MAX))
            }
        }
    }

    /// Parses `<[7]>`, `<think>`, or either with a leading `!`.
    fn token(&mut self) -> Result<Expr, Unenforced> {
        let is_negated = self.take("!");
        let at = self.at;
        if !self.take("<") {
            return self.expected("a token such as `<[7]>` or `<think>`");
        }
        if self.take("[") {
            let digits = self.run("the number of a token", |c| c.is_ascii_digit())?;
            let Ok(id) = digits.parse::<i32>() else {
                return self.error(format!("no vocabulary has a token {digits}"));
            };
            if !self.take("]>") {
                return self.expected("`]>`");
            }
            return Ok(Expr::Token { id: id.unsigned_abs(), is_negated });
        }
        let Some(end) = self.rest().find('>') else {
            return self.expected("`>`");
        };
        self.at += end + 1;
        let id = (self.token_of)(&self.text[at..self.at]);
        match id {
            Ok(id) => Ok(Expr::Token { id, is_negated }),
            Err(reason) => Err(place(self.text, at).refused(reason)),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}
