//! Arguments for prompts, and for what happens with answers, with llama.cpp's names.

use std::error::Error;
use std::path::{Path, PathBuf};

use autoplace::chat::ReplyFormat;
use autoplace::generate::{Chat, Constraint, GenerateRequest, WhenFull};
use serde_json::{Map, Value};

use crate::files::{self, in_file};

/// The prompt, and the handling of answers.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Texts")]
pub(super) struct TextArgs {
    /// The prompt, or a chat's first message. `\n`, `\t`, `\xHH` and so on are escapes, as in llama.cpp
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with = "file")]
    pub(super) said: Option<String>,
    /// A file with the prompt, with the same escapes
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Takes `\n` and so on in --prompt, --file, --stop and --dry-sequence-breaker literally
    #[arg(long)]
    pub(super) no_escape: bool,
    /// A file with the system message
    #[arg(long, value_name = "FILE")]
    system_file: Option<PathBuf>,
    /// Continues the prompt without a chat template
    #[arg(long)]
    pub(super) raw: bool,
    /// Ends after one answer
    #[arg(long)]
    pub(super) single_turn: bool,
    /// Ends an answer before this text; repeat for several
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Prints control tokens
    #[arg(long)]
    special: bool,
    /// Continues after an end-of-text token, for measurements
    #[arg(long)]
    ignore_eos: bool,
    /// Variables of the chat template as a JSON object: `{"enable_thinking": false}`; repeat for several
    #[arg(long, value_name = "JSON", value_parser = object)]
    template_kwargs: Vec<Map<String, Value>>,
    /// Does not parse reasoning and tool calls in answers
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    shift: ShiftArgs,
    /// Constrains answers by a JSON schema
    #[arg(long, value_name = "JSON", value_parser = schema, conflicts_with = "json_schema_file")]
    json_schema: Option<Value>,
    /// Constrains answers by the JSON schema in a file
    #[arg(long, value_name = "FILE", value_parser = schema_of_file)]
    json_schema_file: Option<Value>,
    /// Constrains answers by a grammar in GBNF (llama.cpp's notation) or in Lark
    #[arg(long, value_name = "GBNF", value_parser = grammar, conflicts_with_all = ["grammar_file", "json_schema", "json_schema_file"])]
    grammar: Option<Constraint>,
    /// Constrains answers by the grammar in a file
    #[arg(long, value_name = "FILE", value_parser = grammar_of_file, conflicts_with_all = ["json_schema", "json_schema_file"])]
    grammar_file: Option<Constraint>,
}

/// The arguments for a text that fills its context.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ShiftArgs {
    /// Drops the oldest tokens when the context is full, so that a text continues
    #[arg(long)]
    pub(super) context_shift: bool,
    /// With --context-shift: number of prompt tokens to keep; -1 for all [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = keep)]
    keep: Option<usize>,
}

impl ShiftArgs {
    pub(super) fn when_full(&self) -> WhenFull {
        match self.context_shift {
            true => WhenFull::Shift { keep: self.keep.unwrap_or(0) },
            false => WhenFull::Stop,
        }
    }
}

/// Parses the number of prompt tokens that are kept. -1 means the whole prompt.
fn keep(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(tokens) => usize::try_from(tokens).map_err(|_| "a number of tokens, or -1 for the whole prompt".to_owned()),
        Err(_) => Err("a number of tokens, or -1 for the whole prompt".to_owned()),
    }
}

impl TextArgs {
    /// The prompt, which is an argument or in a file.
    pub(super) fn prompt(&self) -> Result<Option<String>, Box<dyn Error>> {
        let text = match &self.file {
            Some(file) => Some(text_of(file)?),
            None => self.said.clone(),
        };
        Ok(text.map(|text| self.escaped(&text)))
    }

    pub(super) fn system(&self) -> Result<Option<String>, Box<dyn Error>> {
        Ok(self.system_file.as_deref().map(text_of).transpose()?)
    }

    pub(super) fn generated(&self, mut generate: GenerateRequest) -> GenerateRequest {
        for stop in self.stop.iter().filter(|stop| !stop.is_empty()) {
            generate = generate.stop(self.escaped(stop));
        }
        if self.special {
            generate = generate.special(true);
        }
        if self.ignore_eos {
            generate = generate.ignore_eos();
        }
        generate = generate.when_full(self.shift.when_full());
        let schema = self.json_schema.as_ref().or(self.json_schema_file.as_ref());
        let schema = schema.map(|schema| Constraint::json_schema(schema.clone()));
        match schema.or_else(|| self.grammar.clone()).or_else(|| self.grammar_file.clone()) {
            Some(constraint) => generate.constraint(constraint),
            None => generate,
        }
    }

    /// Adds the template's variables and the format of replies to a chat.
    pub(super) fn answered(&self, mut chat: Chat) -> Chat {
        for (name, value) in self.template_kwargs.iter().flatten() {
            chat = chat.variable(name, value.clone());
        }
        // If the user wants to see control tokens, they must not be parsed as marks.
        if self.plain || self.special { chat.reply_format(ReplyFormat::plain()) } else { chat }
    }

    fn escaped(&self, text: &str) -> String {
        if self.no_escape { text.to_owned() } else { escaped(text) }
    }
}

/// A file's text, without the line break at its end.
fn text_of(file: &Path) -> Result<String, String> {
    let text = files::read(file)?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Expands escapes like common/common.cpp (`string_process_escapes`): `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\xHH`. If
/// any other character follows a `\`, the `\` stays.
pub(super) fn escaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let (byte, taken) = match (first, behind) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [mark @ (b'\'' | b'"' | b'\\'), ..]) => (*mark, 2),
            (b'\\', [b'x', digits @ ..]) => match hexadecimal(digits) {
                Some(byte) => (byte, 4),
                None => (b'\\', 1),
            },
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[taken..];
    }
    // Only `\xHH` can lead to invalid UTF-8. In that case the text stays as it was written.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The byte that two hexadecimal digits stand for.
fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits.get(..2)?).ok()?;
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_plain)
}

fn json(text: &str) -> Result<Value, String> {
    text.parse().map_err(|error| format!("it is not JSON: {error}"))
}

/// Parses a JSON schema, which must be enforceable.
fn schema(text: &str) -> Result<Value, String> {
    let schema = json(text)?;
    Constraint::json_schema(schema.clone()).check().map(|()| schema).map_err(|error| error.to_string())
}

fn schema_of_file(file: &str) -> Result<Value, String> {
    schema(&files::read(file.as_ref())?).map_err(|error| in_file(file.as_ref(), error))
}

/// Parses a grammar, whose syntax must be valid. Its tokens are looked up when the model is loaded.
fn grammar(text: &str) -> Result<Constraint, String> {
    let constraint = Constraint::grammar(text);
    constraint.check().map(|()| constraint).map_err(|error| error.to_string())
}

fn grammar_of_file(file: &str) -> Result<Constraint, String> {
    grammar(&files::read(file.as_ref())?).map_err(|error| in_file(file.as_ref(), error))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match json(text)? {
        Value::Object(object) => Ok(object),
        _ => Err("write a JSON object, such as {\"enable_thinking\": false}".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{escaped, keep};
    use crate::files::without_byte_order_mark;

    #[test]
    fn minus_one_keeps_the_whole_prompt() {
        assert_eq!(["-1", "0", "7"].map(keep), [Ok(usize::MAX), Ok(0), Ok(7)]);
        assert!(keep("-2").is_err() && keep("all").is_err());
    }

    #[test]
    fn escapes_of_a_prompt_are_llama_cpps() {
        for (text, read) in [
            (r"a\nb\tc", "a\nb\tc"),
            (r#"\"\'\\n"#, "\"'\\n"),
            (r"\x41\x7a\xg1\x4", r"Az\xg1\x4"),
            (r"\d\", r"\d\"),
            // These bytes are only a part of a character, so the text stays as it is.
            (r"\xe2", r"\xe2"),
            (r"\xe2\x82\xac", "€"),
            ("ä\\nö", "ä\nö"),
            (r"a\rb", "a\rb"),
        ] {
            assert_eq!(escaped(text), read, "{text}");
        }
        assert_eq!(without_byte_order_mark("\u{feff}a\u{feff}"), "a\u{feff}");
    }
}
