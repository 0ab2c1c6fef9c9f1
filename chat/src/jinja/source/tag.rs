//! The tags of a template, as tokens. They are read in the same way as by minijinja's lexer.

use std::sync::LazyLock;

use regex_lite::Regex;

/// Maximum number of tokens in a tag. Published templates have at most 200 in a tag. With more than this maximum,
/// parsing and compiling would recurse too deep.
const MAX_TOKENS: usize = 1000;

/// Words that cannot be an operand.
pub(super) const KEYWORDS: &[&str] = &["in", "not", "and", "or", "if", "else", "elif", "is", "recursive"];

/// A tag, or an expression that stands between `{{` and `}}`.
pub(super) struct Tag<'a> {
    /// What stands between `{%` and the closing delimiter.
    pub(super) inner: &'a str,
    pub(super) tokens: Vec<Token<'a>>,
    /// The closing delimiter, such as `-%}`.
    pub(super) end: &'a str,
    pub(super) is_block: bool,
    /// Whether the template may mark texts as HTML, here or in another tag.
    pub(super) marks_html: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) at: usize,
    pub(super) text: &'a str,
    /// The index of the token that opens the innermost bracket around this token.
    pub(super) around: Option<usize>,
}

impl<'a> Tag<'a> {
    /// Reads the tokens of a tag, up to the first closing delimiter that is not inside brackets.
    pub(super) fn read(source: &'a str, is_block: bool, marks_html: bool) -> Result<Self, &'static str> {
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
                let end = &rest[..sign + close.len()];
                return Ok(Self { inner: &source[..at], tokens, end, is_block, marks_html });
            }
            let text = TOKEN.find(rest).ok_or("unexpected end of a tag")?.as_str();
            let before = source.as_bytes()[..at].last().copied();
            let after = rest.as_bytes().get(text.len()).copied();
            match text.as_bytes()[0] {
                b'\'' | b'"' if text.len() == 1 => return Err("unexpected end of string"),
                b'0'..=b'9' if runs_on(after, before) => return Err("a number that a letter or a digit follows"),
                b'_' if text.starts_with("__") => return Err("a name that begins with `__`"),
                b')' | b']' | b'}' => open.pop().map(drop).ok_or("a closing bracket without an opening one")?,
                _ => {}
            }
            if tokens.len() == MAX_TOKENS {
                return Err("more than 1000 tokens in one tag");
            }
            let around = open.last().copied();
            if matches!(text, "(" | "[" | "{") {
                open.push(tokens.len());
            }
            tokens.push(Token { at, text, around });
            at += text.len();
        }
    }

    pub(super) fn word(&self, index: usize) -> &'a str {
        self.tokens.get(index).map_or("", |token| token.text)
    }
}

/// Whether the next byte could continue a number. The answer matters, because minijinja splits `1.in` and `1. in` into
/// different tokens.
fn runs_on(after: Option<u8>, before: Option<u8>) -> bool {
    after.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || (byte == b'.' && before != Some(b'.')))
}

/// The pattern of a token: a name, a text, a number, an operator, or a single other character.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"^(?s:[A-Za-z_][A-Za-z0-9_]*|'(?:[^'\\]|\\.)*'|",
        r#""(?:[^"\\]|\\.)*"|"#,
        r"0[xX][0-9a-fA-F_]+|0[oObB][0-9_]+|[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][-+]?[0-9_]+)?|",
        r"//|\*\*|==|!=|>=|<=|.)"
    ))
});

/// Compiles a pattern of this module.
pub(super) fn regex(pattern: &str) -> Regex {
    // All patterns are constants, and the tests cover them.
    Regex::new(pattern).unwrap_or_else(|error| unreachable!("{error}"))
}
