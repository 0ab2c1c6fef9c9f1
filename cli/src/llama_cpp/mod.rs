//! A table of every flag of llama.cpp's programs. Each row has our equivalent, or the reason why there is none. The
//! table is used for the command line ([`words`]), for the inspection of running servers ([`crate::flags`]), and for
//! docs/flags.md ([`document`]).
//!
//! A test reads the flags from the source of llama.cpp that this workspace builds (common/arg.cpp, and llama-bench's
//! README). If a later version adds a flag, the test fails, and its message contains the flag.

mod context;
#[cfg(test)]
mod document;
mod drafts;
mod lists;
mod placing;
mod sampling;
mod serving;
mod texts;
mod tools;
mod variables;
mod words;

pub(crate) use lists::{api_keys, api_keys_in_file};
pub(crate) use variables::Environment;
pub(crate) use words::Words;

/// One flag, with its spellings, its value, and our equivalent.
pub(crate) struct Row {
    /// The spellings. Messages use the first one.
    pub(crate) names: &'static [&'static str],
    /// The spellings that turn a switch off.
    pub(crate) off: &'static [&'static str],
    pub(crate) value: Value,
    here: Here,
    /// Values that are accepted even by a verb without such a flag, because the verb behaves in this way anyway.
    usual: &'static [&'static str],
    /// What the library has for this flag, for docs/flags.md. Empty if it has the same as the program.
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/flags.md is written by a test"))]
    library: &'static str,
}

/// How many of the words after a flag are its value.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    /// No word: the flag is a switch.
    None,
    /// The next word, even if it looks like a flag.
    One,
    /// The next two words, joined by a comma.
    Two,
    /// The next word, but only if it is one of these. The switches of llama-bench have a value, but in older versions
    /// `-fa` had none. For `-fa`, any word that is not a flag counts as the value.
    Optional(&'static [&'static str]),
}

/// What our command line does with a flag.
#[derive(Clone, Copy)]
enum Here {
    /// Our equivalent flag, which gets the same value: the first of these flags that the verb has. If a flag ends with
    /// `=`, the value is appended to it.
    Flag(&'static [&'static str]),
    /// A switch. These flags of ours turn it on and off. An empty flag means that our program behaves in this way
    /// anyway.
    Switch(&'static str, &'static str),
    /// A function that translates a value into our words, and a description of the result. If one of the words does not
    /// begin with a dash, it is the model.
    Reads(
        fn(&str) -> Result<Vec<String>, String>,
        #[cfg_attr(not(test), expect(dead_code, reason = "docs/flags.md says it, and a test writes that"))]
        &'static str,
    ),
    /// With these values, our program behaves in this way anyway. All other values are refused, for this reason.
    Only(&'static [&'static str], &'static str),
    /// The flag is refused for this reason.
    Refused(&'static str),
}

/// The values of a switch of llama-bench.
const ON_OFF: &[&str] = &["on", "off", "0", "1"];

impl Row {
    const fn new(names: &'static [&'static str], value: Value, here: Here) -> Self {
        Self { names, off: &[], value, here, usual: &[], library: "" }
    }

    /// A flag with a value, for which we have an equivalent.
    const fn flag(names: &'static [&'static str], ours: &'static [&'static str]) -> Self {
        Self::new(names, Value::One, Here::Flag(ours))
    }

    /// A switch, for which we have an equivalent.
    const fn switch(names: &'static [&'static str], on: &'static str) -> Self {
        Self::new(names, Value::None, Here::Switch(on, ""))
    }

    /// A switch that can be turned on and off. We have an equivalent for both.
    const fn on_off([names, off]: [&'static [&'static str]; 2], [on_here, off_here]: [&'static str; 2]) -> Self {
        let row = Self::new(names, Value::Optional(ON_OFF), Here::Switch(on_here, off_here));
        Self { off, ..row }
    }

    /// A flag whose value must be translated.
    const fn reads(
        names: &'static [&'static str],
        read: fn(&str) -> Result<Vec<String>, String>,
        what: &'static str,
    ) -> Self {
        Self::new(names, Value::One, Here::Reads(read, what))
    }

    /// A flag for which the listed values change nothing.
    const fn only(names: &'static [&'static str], values: &'static [&'static str], reason: &'static str) -> Self {
        Self::new(names, Value::One, Here::Only(values, reason))
    }

    /// A switch that turns on something that is always on here. Turning it off is refused.
    const fn always([names, off]: [&'static [&'static str]; 2], reason: &'static str) -> Self {
        Self { off, ..Self::new(names, Value::Optional(ON_OFF), Here::Only(&["on"], reason)) }
    }

    /// A switch that turns on something that is never on here, so it is refused. Turning it off is accepted.
    const fn never([names, off]: [&'static [&'static str]; 2], reason: &'static str) -> Self {
        Self { off, ..Self::new(names, Value::Optional(ON_OFF), Here::Only(&["off"], reason)) }
    }

    /// Flags with a value that are refused.
    const fn refused(names: &'static [&'static str], reason: &'static str) -> Self {
        Self::new(names, Value::One, Here::Refused(reason))
    }

    /// Switches that are refused.
    const fn refused_switch(names: &'static [&'static str], reason: &'static str) -> Self {
        Self::new(names, Value::None, Here::Refused(reason))
    }

    const fn usual(self, values: &'static [&'static str]) -> Self {
        Self { usual: values, ..self }
    }

    const fn off(self, names: &'static [&'static str]) -> Self {
        Self { off: names, ..self }
    }

    const fn library(self, text: &'static str) -> Self {
        Self { library: text, ..self }
    }

    /// Whether the next word is the flag's value.
    pub(crate) fn takes(&self, next: &str) -> bool {
        match self.value {
            Value::None => false,
            Value::One | Value::Two => true,
            // In `-fa maybe`, the word is a wrong value. In `-fa -ngl 5`, which is the older form, there is no value.
            Value::Optional(values) => {
                values.contains(&next) || (matches!(self.here, Here::Flag(_)) && !next.starts_with('-'))
            }
        }
    }

    /// All spellings; those that turn the flag off come last.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().chain(self.off).copied()
    }
}

/// The table, divided into the sections of docs/flags.md.
const TABLE: [(&str, &[Row]); 8] = [
    ("The model and where it goes", placing::ROWS),
    ("The context, threads and loading", context::ROWS),
    ("Choosing tokens", sampling::ROWS),
    ("Prompts and texts", texts::ROWS),
    ("Draft tokens", drafts::ROWS),
    ("The server", serving::ROWS),
    ("The program around it", texts::PROGRAM),
    ("Other tools", tools::ROWS),
];

/// The flag that has this spelling. As in common/arg.cpp, a long flag may be written with `_` in place of `-`.
pub(crate) fn find(word: &str) -> Option<&'static Row> {
    let name = match word.strip_prefix("--") {
        Some(name) => format!("--{}", name.replace('_', "-")),
        None => word.to_owned(),
    };
    TABLE.iter().flat_map(|(_, rows)| *rows).find(|row| row.spellings().any(|spelling| spelling == name))
}

/// As `is_truthy` in common/arg.cpp.
pub(crate) fn is_yes(value: &str) -> bool {
    ["on", "enabled", "true", "1"].contains(&value)
}

/// As `is_falsey` in common/arg.cpp.
pub(crate) fn is_no(value: &str) -> bool {
    ["off", "disabled", "false", "0"].contains(&value)
}
