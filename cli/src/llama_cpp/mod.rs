//! Every flag of llama.cpp's programs, and what becomes of it here: the one table that the command line
//! ([`words`]), what a server was started with ([`crate::flags`]) and docs/flags.md ([`document`]) come from.
//!
//! A test reads the flags of the pinned source (common/arg.cpp, and llama-bench's README): a flag that a later
//! version adds fails it by name.

mod context;
#[cfg(test)]
mod document;
mod drafts;
mod placing;
mod sampling;
mod serving;
mod texts;
mod tools;
mod words;

pub(crate) use words::Words;

/// One flag: its spellings, its value, and what becomes of it.
pub(crate) struct Row {
    /// The spellings; the first is what messages call it.
    pub(crate) names: &'static [&'static str],
    /// Of a switch: the spellings that turn it off.
    pub(crate) off: &'static [&'static str],
    pub(crate) value: Value,
    here: Here,
    /// Values that ask for what is so anyway, where a verb has no flag for others.
    usual: &'static [&'static str],
    /// What it is in the library, for docs/flags.md. Empty: as in the program.
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/flags.md is written by a test"))]
    library: &'static str,
}

/// The words behind a flag that belong to it.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    /// None: a switch.
    None,
    /// The next word, whatever it is.
    One,
    /// The next two words, joined by a comma.
    Two,
    /// The next word where it is one of these: llama-bench gives switches a value, and `-fa` once had none. Of `-fa`
    /// any word that is no flag.
    Optional(&'static [&'static str]),
}

/// What becomes of a flag on our command line.
#[derive(Clone, Copy)]
enum Here {
    /// The first of these flags of ours that the verb has, with the same value. One that ends with `=` is put before
    /// the value as it is.
    Flag(&'static [&'static str]),
    /// A switch: the flag of ours that turns it on, and the one that turns it off. Empty: that is so anyway.
    Switch(&'static str, &'static str),
    /// Words of ours for a value, and in words which; a word without a dash is the model.
    Reads(
        fn(&str) -> Result<Vec<String>, String>,
        #[cfg_attr(not(test), expect(dead_code, reason = "docs/flags.md says it, and a test writes that"))]
        &'static str,
    ),
    /// These values ask for what is so anyway. Others are refused for this reason.
    Only(&'static [&'static str], &'static str),
    /// Refused for this reason.
    Refused(&'static str),
}

/// Values of a switch that llama-bench gives it.
const ON_OFF: &[&str] = &["on", "off", "0", "1"];

impl Row {
    const fn new(names: &'static [&'static str], value: Value, here: Here) -> Self {
        Self { names, off: &[], value, here, usual: &[], library: "" }
    }

    /// A flag with a value, which is this one of ours.
    const fn flag(names: &'static [&'static str], ours: &'static [&'static str]) -> Self {
        Self::new(names, Value::One, Here::Flag(ours))
    }

    /// A switch, which is this one of ours.
    const fn switch(names: &'static [&'static str], on: &'static str) -> Self {
        Self::new(names, Value::None, Here::Switch(on, ""))
    }

    /// A switch that can be turned off, and what both are here.
    const fn on_off([names, off]: [&'static [&'static str]; 2], [on_here, off_here]: [&'static str; 2]) -> Self {
        let row = Self::new(names, Value::Optional(ON_OFF), Here::Switch(on_here, off_here));
        Self { off, ..row }
    }

    /// A flag whose value is read into words of ours.
    const fn reads(
        names: &'static [&'static str],
        read: fn(&str) -> Result<Vec<String>, String>,
        what: &'static str,
    ) -> Self {
        Self::new(names, Value::One, Here::Reads(read, what))
    }

    /// A flag of which these values change nothing.
    const fn only(names: &'static [&'static str], values: &'static [&'static str], reason: &'static str) -> Self {
        Self::new(names, Value::One, Here::Only(values, reason))
    }

    /// A switch that says what is so anyway; turned off, it is refused.
    const fn always([names, off]: [&'static [&'static str]; 2], reason: &'static str) -> Self {
        Self { off, ..Self::new(names, Value::Optional(ON_OFF), Here::Only(&["on"], reason)) }
    }

    /// A switch that is refused; turned off, it says what is so anyway.
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

    /// Whether this word behind it is its value.
    pub(crate) fn takes(&self, next: &str) -> bool {
        match self.value {
            Value::None => false,
            Value::One | Value::Two => true,
            // `-fa maybe` has a wrong value; `-fa -ngl 5` is the form of earlier versions, which had none.
            Value::Optional(values) => {
                values.contains(&next) || (matches!(self.here, Here::Flag(_)) && !next.starts_with('-'))
            }
        }
    }

    /// All spellings, those that turn it off last.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().chain(self.off).copied()
    }
}

/// The table by sections of docs/flags.md.
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

/// The flag of this spelling. As in common/arg.cpp, `_` may stand for `-` in a long one.
pub(crate) fn find(word: &str) -> Option<&'static Row> {
    let name = match word.strip_prefix("--") {
        Some(name) => format!("--{}", name.replace('_', "-")),
        None => word.to_owned(),
    };
    TABLE.iter().flat_map(|(_, rows)| *rows).find(|row| row.spellings().any(|spelling| spelling == name))
}

/// common/arg.cpp, `is_truthy`.
pub(crate) fn is_yes(value: &str) -> bool {
    ["on", "enabled", "true", "1"].contains(&value)
}

/// The same, `is_falsey`.
pub(crate) fn is_no(value: &str) -> bool {
    ["off", "disabled", "false", "0"].contains(&value)
}
