//! The patterns of tensor overrides: regular expressions that mean the same to us as to llama.cpp.
//!
//! llama.cpp searches a tensor's name with `std::regex` in its default grammar, ECMAScript (llama-model-loader.cpp,
//! `create_tensor`). What is taken here is the part of that grammar that every C++ library and ours read alike; the
//! rest is refused by name instead of being understood differently: look-around, back-references, flags, classes by
//! name, classes within classes, escapes of letters other than `d D w W s S b B`, and characters beyond ASCII.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::{Error, Place, TensorOverride};

/// Overrides, ready to be asked by name.
#[derive(Debug, Clone)]
pub(crate) struct OverrideRules(Vec<(Pattern, Place)>);

impl OverrideRules {
    /// Reads the patterns of overrides on so many GPUs.
    pub(crate) fn new(overrides: &[TensorOverride], n_gpus: usize) -> Result<Self, Error> {
        let rule = |rule: &TensorOverride| match rule.place {
            Place::Gpu(gpu) if gpu >= n_gpus => Err(Error::Override {
                pattern: rule.pattern.clone(),
                reason: format!("there is no GPU {gpu}: there are {n_gpus}"),
            }),
            place => Ok((Pattern::new(&rule.pattern)?, place)),
        };
        overrides.iter().map(rule).collect::<Result<_, _>>().map(Self)
    }

    /// Where the weight of this name goes, if elsewhere than its layer: the first pattern found in it decides.
    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        let first = self.0.iter().find(|(pattern, _)| pattern.is_in(name));
        first.map(|&(_, place)| place)
    }
}

/// A pattern, ready to be searched for.
#[derive(Debug, Clone)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// Reads a pattern.
    pub(super) fn new(pattern: &str) -> Result<Self, Error> {
        let error = |reason| Error::Override { pattern: pattern.to_owned(), reason };
        let is_taken = TAKEN.is_match(pattern) && !SETS.iter().any(|set| pattern.contains(set));
        if !is_taken {
            return Err(error(REFUSED.to_owned()));
        }
        let regex = Regex::new(pattern).map_err(|reason| error(reason.to_string()))?;
        Ok(Self(regex))
    }

    /// Whether a part of the name matches.
    pub(super) fn is_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

/// The part of the grammar that both sides read alike, but for brackets without their other one, which `regex-lite`
/// refuses: plain characters, escapes and classes, which may be repeated as a group may; groups and alternatives; ends
/// of names and words.
static TAKEN: LazyLock<Regex> = LazyLock::new(|| {
    let escape = r"\\[dDwWsS!-/:;=?@\[-^`{-~]";
    let plain = r##"[ !"#%&',\-/0-9:;<=>@A-Z_`a-z~]"##;
    let class = format!(r"\[\^?(?:[ -Z^-~]|{escape})+\]");
    let repeated = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??";
    let taken = format!(
        r"^(?:(?:{escape}|{plain}|\.|{class}|\))(?:{repeated})?|\((?:\?:)?|\\[bB]|[\^$|])*$"
    );
    Regex::new(&taken).expect("a pattern of ours")
});

/// What makes sets of classes for us, and stands for itself in C++.
const SETS: [&str; 3] = ["&&", "--", "~~"];

const REFUSED: &str = "C++ could read it differently: of printable ASCII there may be `.`, `^ $`, groups `(` or `(?:`, `|`, \
    classes, `\\d \\w \\s \\b`, escaped punctuation, and `*`, `+`, `?`, `{n,m}` behind what they repeat";

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn a_pattern_is_found_anywhere_in_a_name() {
        for (pattern, name, found) in [
            (r"\.ffn_.*_exps", "blk.3.ffn_gate_exps.weight", true),
            (r"blk\.(1[0-9]|2)\.ffn", "blk.2.ffn_up.weight", true),
            (r"blk\.(1[0-9]|2)\.ffn", "blk.20.ffn_up.weight", false),
            (r"^output\.weight$", "output.weight", true),
            (r"^output\.weight$", "attn_output.weight", false),
            (r"blk\.\d{2,}\.", "blk.7.attn_q.weight", false),
            (r"[^.]+_exps\.(?:weight|bias)", "blk.1.ffn_up_exps.bias", true),
            (r"_norm\b", "blk.1.attn_norm.weight", true),
            ("", "anything", true),
        ] {
            let is_found = Pattern::new(pattern).unwrap().is_in(name);
            assert_eq!(is_found, found, "{pattern}");
        }
    }

    /// One on each line, but for those that are no line.
    const DIFFERENT: &str = r"
(?i)ffn
(?=ffn)
(?<name>ffn)
(a)\1
\x41
\p{L}
\<ffn
\A
a**
*a
^*
(|+)
[]a]
[[:alpha:]]
[a&&b]
[a--b]
[\b]
a{
a{,2}
a{1,2}{3}
a]
a}
(a
a)
[a
[z-a]
ffn\
";

    #[test]
    fn what_c_plus_plus_could_read_differently_is_refused() {
        for pattern in DIFFERENT.trim().lines().chain(["\u{e9}", "a\nb"]) {
            let error = Pattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains("tensor_buft_overrides"), "{error}");
        }
    }
}
