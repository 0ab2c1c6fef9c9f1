//! Translates llama.cpp's flags on a command line into our flags. If some are not supported, reports each of them with
//! the reason.
//!
//! Variables of the environment are translated in the same way ([`super::variables`]).
//!
//! clap would read `-sys` as `-s ys`, and `-ngl` as three switches. So words with a single dash and several letters
//! never reach clap: they must be in the table, or they are refused.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Arg, Command};

use super::{Environment, Here, Row, Value, find};

/// A command line after its translation.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// The words that clap gets.
    pub(crate) words: Vec<OsString>,
    /// Flags of llama.cpp that are left out, because they mean nothing for this verb.
    pub(crate) left_out: Vec<String>,
    /// Other notes about variables of the environment.
    pub(crate) notes: Vec<String>,
    /// The variables of the environment that are used, with what they set.
    pub(crate) used: Vec<String>,
    pub(super) refused: Vec<String>,
    /// The model, if one of the flags names it.
    pub(super) model: Option<String>,
    /// Whether the command line names the model, as a word or with a flag.
    pub(super) names_model: bool,
    /// The flags of the table on the command line, by the first spelling of each.
    pub(super) rows: Vec<&'static str>,
    /// The words of variables. They precede those of the command line.
    pub(super) of_variables: Vec<OsString>,
    /// Whether flags of other verbs are left out, and not refused.
    pub(super) leaves_out: bool,
}

/// The flags of one verb, by each of their spellings.
pub(super) struct Own<'c>(BTreeMap<String, &'c Arg>);

impl<'c> Own<'c> {
    fn new(verb: &'c Command) -> Self {
        let mut own = BTreeMap::new();
        for arg in verb.get_arguments() {
            let long = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
            own.extend(long.map(|name| (format!("--{name}"), arg)));
            let short = arg.get_short().into_iter().chain(arg.get_all_short_aliases().unwrap_or_default());
            own.extend(short.map(|letter| (format!("-{letter}"), arg)));
        }
        Self(own)
    }

    /// The argument of the flag with which this word begins.
    pub(super) fn arg(&self, word: &str) -> Option<&'c Arg> {
        self.0.get(word.split('=').next().unwrap_or(word)).copied()
    }

    /// Whether this word begins with a flag of the verb.
    fn has(&self, word: &str) -> bool {
        let name = word.split('=').next().unwrap_or(word);
        matches!(name, "--help" | "-h") || self.0.contains_key(name)
    }

    /// Whether the word that follows this flag is its value.
    fn takes_next(&self, word: &str) -> bool {
        let arg = self.0.get(word);
        arg.is_some_and(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
    }
}

impl Words {
    /// Translates a command line and the variables of the environment. The first word is the program's name.
    ///
    /// # Errors
    ///
    /// The error lists every flag and every variable that is not supported, with the reason.
    pub(crate) fn read(said: Vec<OsString>, environment: &Environment, program: &Command) -> Result<Self, String> {
        let verb = said.get(1).and_then(|verb| verb.to_str()).and_then(|verb| program.find_subcommand(verb));
        let Some(verb) = verb else { return Ok(Self { words: said, ..Self::default() }) };
        let own = Own::new(verb);
        let mut read = Self::default();
        let mut rest = said.into_iter();
        let begin: Vec<OsString> = rest.by_ref().take(2).collect();
        let rest: Vec<OsString> = rest.collect();
        let mut rest = rest.as_slice();
        while let [word, behind @ ..] = rest {
            rest = behind;
            match word.to_str() {
                Some("--") => {
                    read.names_model |= !rest.is_empty();
                    read.words.push(word.clone());
                    read.words.extend_from_slice(rest);
                    break;
                }
                Some(text) if text.len() > 1 && text.starts_with('-') => {
                    rest = read.flag(text, rest, &own, (verb.get_name(), program));
                }
                text => match text.and_then(with_another_dash) {
                    Some(flag) => read.refused.push(format!("{}: write {flag}, with `-`", text.unwrap_or_default())),
                    None => {
                        // `-` is a prompt from stdin.
                        read.names_model |= word != "-";
                        read.words.push(word.clone());
                    }
                },
            }
        }
        read.names_model |= read.model.is_some();
        environment.add_to(&mut read, &own, (verb.get_name(), program));
        if !read.refused.is_empty() {
            return Err(read.refused.join("; "));
        }
        let model = read.model.take().map(OsString::from);
        let of_variables = std::mem::take(&mut read.of_variables);
        read.words = begin.into_iter().chain(model).chain(of_variables).chain(read.words).collect();
        Ok(read)
    }

    /// Translates a word that begins with a dash. Returns the words that follow it and its values.
    fn flag<'w>(
        &mut self,
        text: &str,
        behind: &'w [OsString],
        own: &Own<'_>,
        verb: (&str, &Command),
    ) -> &'w [OsString] {
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let is_ours = |row: &Row| match (row.here, row.value) {
            // Our own flag may have the same spelling but another meaning, such as `measure -n`.
            (Here::Flag(flags), _) => own.has(name) && !flags.iter().any(|flag| own.has(flag)),
            // Such as `template --tools` and `run --draft-max`.
            (Here::Refused(_), _) => own.has(name),
            // `--mtp=3` and `--embeddings=mean` are flags of ours, because llama.cpp's flags of this name have no
            // value.
            (_, Value::None) => own.has(name) && joined.is_some(),
            _ => false,
        };
        if let Some(row) = find(name).filter(|&row| !is_ours(row)) {
            self.rows.push(row.names[0]);
            return self.row(row, (name, joined), behind, own, verb);
        }
        if own.has(text) {
            self.words.push(text.into());
            // The word that follows our flag is its value, even if llama.cpp has a flag of that name. It is no value if
            // it is one of our own flags.
            let next = behind.first().and_then(|next| next.to_str());
            let is_flag = next.is_some_and(|next| next.len() > 1 && next.starts_with('-') && own.has(next));
            let ([next, after @ ..], None, true, false) = (behind, joined, own.takes_next(name), is_flag) else {
                return behind;
            };
            match next.to_str().filter(|next| next.starts_with('-')) {
                // The value is appended with `=`. If it were a separate word with a dash, clap would read it as a flag.
                Some(value) => {
                    self.words.pop();
                    self.words.push(format!("{text}={value}").into());
                }
                None => self.words.push(next.clone()),
            }
            return after;
        }
        // Words such as `inf` and `nan` are no numbers here.
        let is_number = |text: &str| text.parse::<f64>().is_ok_and(f64::is_finite);
        let letters = text.trim_start_matches('-');
        if text.starts_with("--") || letters.chars().count() == 1 || is_number(text) {
            // clap reads these words itself.
            self.words.push(text.into());
            return behind;
        }
        // Such as `-c4096`: one letter and a number.
        let (letter, value) = letters.split_at(letters.chars().next().map_or(0, char::len_utf8));
        if is_number(value) {
            return self.flag(&format!("-{letter}={value}"), behind, own, verb);
        }
        self.refused.push(format!("{name} is not a flag of this program or of llama.cpp{}", near(name)));
        behind
    }

    /// Translates a flag of the table into our flags.
    pub(super) fn row<'w>(
        &mut self,
        row: &Row,
        (name, joined): (&str, Option<&str>),
        mut behind: &'w [OsString],
        own: &Own<'_>,
        (verb, program): (&str, &Command),
    ) -> &'w [OsString] {
        let mut next = |is_value: &dyn Fn(&str) -> bool| match behind {
            [next, rest @ ..] => {
                let next = next.to_str().filter(|next| is_value(next)).map(str::to_owned);
                behind = if next.is_some() { rest } else { behind };
                next
            }
            [] => None,
        };
        let is_off = row.off.contains(&name.replace('_', "-").as_str());
        let value = match (row.value, joined) {
            (_, Some(value)) => Some(value.to_owned()),
            (Value::None, None) => Some("on".to_owned()),
            (Value::One, None) => next(&|_| true),
            (Value::Two, None) => {
                next(&|_| true).and_then(|first| next(&|_| true).map(|second| format!("{first},{second}")))
            }
            (Value::Optional(_), None) => next(&|next| row.takes(next)).or(Some("on".to_owned())),
        };
        let Some(mut value) = value else {
            self.refused.push(format!("{name}: its value is missing"));
            return behind;
        };
        if is_off && super::is_no(&value) {
            value = "on".to_owned();
        } else if is_off && super::is_yes(&value) {
            value = "off".to_owned();
        }
        let words = match row.here {
            Here::Refused(reason) => Err(reason.to_owned()),
            // Every spelling of a value that turns a switch on counts as `on`.
            Here::Only(values, _) if values.contains(&switched(row, &value)) => Ok(Vec::new()),
            Here::Only(values, reason) => Err(match values {
                [] | ["on" | "off", ..] => reason.to_owned(),
                values => format!("{reason} (accepted: {})", values.join(", ")),
            }),
            Here::Switch(on, off) if super::is_yes(&value) || super::is_no(&value) => {
                self.forget(&[on, off]);
                Ok(vec![if super::is_yes(&value) { on.to_owned() } else { off.to_owned() }])
            }
            // A third value, such as `--kv-offload auto`.
            Here::Switch(on, _) => match (on.split_once('='), row.value) {
                (Some((flag, _)), Value::Optional(values)) if values.contains(&&*value) => {
                    Ok(vec![format!("{flag}={value}")])
                }
                _ => Err(format!("`{value}` is not on or off")),
            },
            Here::Reads(read, _) => read(&value),
            Here::Flag(ours) if row.usual.contains(&&*value) => {
                self.forget(ours);
                Ok(Vec::new())
            }
            Here::Flag(ours) => Ok(vec![match ours.iter().find(|flag| own.has(flag)) {
                Some(flag) if flag.ends_with('=') => format!("{flag}{value}"),
                Some(flag) => format!("{flag}={value}"),
                None => ours[0].to_owned(),
            }]),
        };
        match words {
            Err(reason) => self.refused.push(format!("{name}: {reason}")),
            Ok(words) => {
                for word in words.into_iter().filter(|word| !word.is_empty()) {
                    self.put(name, word, own, (verb, program));
                }
            }
        }
        behind
    }

    /// Removes these flags of ours from the words, because the last of several values counts in llama.cpp.
    fn forget(&mut self, flags: &[&str]) {
        let is_one = |word: &str, flag: &&&str| {
            !flag.is_empty() && word.strip_prefix(**flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        self.words.retain(|word| word.to_str().is_none_or(|word| !flags.iter().any(|flag| is_one(word, &flag))));
    }

    /// Adds the word into which a flag was translated.
    fn put(&mut self, name: &str, word: String, own: &Own<'_>, (verb, program): (&str, &Command)) {
        if !word.starts_with('-') {
            if let Some(other) = self.model.replace(word) {
                self.refused.push(format!("{name}: the model is already {other}"));
            }
        } else if own.has(&word) {
            self.words.push(word.into());
        } else if word == "--yes" {
            // A verb that fetches nothing asks for no confirmation, so this flag is dropped.
        } else {
            let verbs = verbs_with(program, &word);
            match verbs.is_empty() {
                true => self.refused.push(format!("{name}: no verb of this program accepts it")),
                false if verb == "plan" => {
                    push_once(&mut self.left_out, format!("{name} does not affect placement, and is left out"));
                }
                false if self.leaves_out => {
                    let left_out =
                        format!("{name} is not used: `autoplace {}` takes it, not {verb}", verbs.join("` or `"));
                    push_once(&mut self.left_out, left_out);
                }
                false => {
                    let refused = format!("{name}: `autoplace {}` takes it, not {verb}", verbs.join("` or `"));
                    push_once(&mut self.refused, refused);
                }
            }
        }
    }
}

/// Adds a message, unless it is there already: a list becomes several words of one flag.
fn push_once(messages: &mut Vec<String>, message: String) {
    if !messages.contains(&message) {
        messages.push(message);
    }
}

/// Replaces a switch's value by `on` or `off`. Any other value is returned unchanged.
fn switched<'v>(row: &Row, value: &'v str) -> &'v str {
    match row.value {
        Value::Optional(_) if super::is_yes(value) && row.here_is_switch() => "on",
        Value::Optional(_) if super::is_no(value) && row.here_is_switch() => "off",
        _ => value,
    }
}

impl Row {
    /// Whether this flag's values are those of a switch.
    fn here_is_switch(&self) -> bool {
        matches!(self.here, Here::Only(["on" | "off", ..], _))
    }
}

/// The verbs that have the flag with which this word begins.
pub(super) fn verbs_with<'c>(program: &'c Command, word: &str) -> Vec<&'c str> {
    let has = |verb: &&Command| Own::new(verb).has(word);
    program.get_subcommands().filter(has).map(Command::get_name).collect()
}

/// The flag of the table that is meant by a word with another dash than `-`. Programs that edit texts replace `-` and
/// `--` by such dashes.
fn with_another_dash(word: &str) -> Option<String> {
    let rest = word.trim_start_matches(['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}', '-']);
    let flags = ["-", "--"].map(|dash| format!("{dash}{rest}"));
    let is_known = |flag: &String| find(flag.split('=').next().unwrap_or_default()).is_some();
    flags.into_iter().find(|flag| rest.len() < word.len() && is_known(flag))
}

/// Flags of the table that begin in the same way, for a message.
fn near(name: &str) -> String {
    let begin: String = name.chars().take(3).collect();
    let rows = super::TABLE.iter().flat_map(|(_, rows)| *rows).flat_map(Row::spellings);
    let near: Vec<&str> = rows.filter(|spelling| spelling.starts_with(&begin)).take(5).collect();
    if near.is_empty() { String::new() } else { format!("; similar flags are {}", near.join(", ")) }
}
