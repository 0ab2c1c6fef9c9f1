//! The patterns of tensor overrides: regular expressions that mean the same to us as to llama.cpp.
//!
//! llama.cpp searches a tensor's name with `std::regex` in its default grammar, ECMAScript (llama-model-loader.cpp,
//! `create_tensor`). What is taken here is the part of that grammar that every C++ library and ours read alike; the
//! rest is refused by name instead of being understood differently: look-around, back-references, flags, classes by
//! name, classes within classes, escapes of letters other than `d D w W s S b B`, and characters beyond ASCII.

use super::{Error, Place, TensorOverride};

/// Overrides, ready to be asked by name.
#[derive(Debug, Clone)]
pub(crate) struct OverrideRules(Vec<(Pattern, Place)>);

impl OverrideRules {
    /// Reads the patterns of overrides on so many GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for a pattern that is no regular expression or that C++ could read differently, and for a
    /// place that does not exist.
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
pub(super) struct Pattern(regex_lite::Regex);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] where it is none, or one that C++ could read differently.
    pub(super) fn new(pattern: &str) -> Result<Self, Error> {
        let error = |reason| Error::Override { pattern: pattern.to_owned(), reason };
        Scan::new(pattern).check().map_err(error)?;
        let regex = regex_lite::Regex::new(pattern).map_err(|reason| error(reason.to_string()))?;
        Ok(Self(regex))
    }

    /// Whether a part of the name matches.
    pub(super) fn is_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

/// A walk over a pattern that knows just enough of the grammar to see what both sides read alike.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    fn new(pattern: &'a str) -> Self {
        Self { rest: pattern.as_bytes() }
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn eat(&mut self, token: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn check(mut self) -> Result<(), String> {
        // Whether something that can be repeated stands before.
        let mut atom = false;
        while let Some(byte) = self.next() {
            atom = match byte {
                b'\\' => self.escape(false)?,
                b'[' => {
                    self.class()?;
                    true
                }
                b'(' => {
                    if self.rest.first() == Some(&b'?') && !self.eat(b"?:") {
                        return Err("of groups that begin with `(?` only `(?:` is taken".to_owned());
                    }
                    false
                }
                b')' => true,
                b'^' | b'$' | b'|' => false,
                b'*' | b'+' | b'?' => {
                    self.repetition(atom, char::from(byte))?;
                    false
                }
                b'{' => {
                    self.bounds()?;
                    self.repetition(atom, '{')?;
                    false
                }
                b']' | b'}' => {
                    let byte = char::from(byte);
                    return Err(format!("a lone `{byte}` must be escaped"));
                }
                _ => {
                    printable(byte)?;
                    true
                }
            };
        }
        Ok(())
    }

    /// After a sign of repetition, which may be followed by the `?` of as few as possible.
    fn repetition(&mut self, atom: bool, sign: char) -> Result<(), String> {
        if !atom {
            return Err(format!("there is nothing that `{sign}` could repeat"));
        }
        self.eat(b"?");
        Ok(())
    }

    /// After `{`: `n}`, `n,}` or `n,m}`.
    fn bounds(&mut self) -> Result<(), String> {
        let number = |scan: &mut Self| {
            let digits = scan.rest.iter().take_while(|byte| byte.is_ascii_digit());
            let digits = digits.count();
            scan.rest = &scan.rest[digits..];
            digits > 0
        };
        let mut fits = number(self);
        if fits && self.eat(b",") {
            number(self);
        }
        fits &= self.eat(b"}");
        match fits {
            true => Ok(()),
            false => Err("after `{` there must be `n}`, `n,}` or `n,m}`".to_owned()),
        }
    }

    /// After a backslash; whether it can be repeated.
    fn escape(&mut self, in_class: bool) -> Result<bool, String> {
        match self.next() {
            Some(b'd' | b'D' | b'w' | b'W' | b's' | b'S') => Ok(true),
            // In a class it is the backspace there, and nothing here.
            Some(b'b' | b'B') if !in_class => Ok(false),
            // Ends of words in our grammar.
            Some(byte) if byte.is_ascii_punctuation() && !matches!(byte, b'<' | b'>' | b'_') => {
                Ok(true)
            }
            Some(byte) => {
                printable(byte)?;
                let byte = char::from(byte);
                Err(format!("the escape `\\{byte}` is not taken"))
            }
            None => Err("it ends with a backslash".to_owned()),
        }
    }

    /// After `[`, up to its `]`.
    fn class(&mut self) -> Result<(), String> {
        self.eat(b"^");
        if self.rest.first() == Some(&b']') {
            return Err("a class cannot begin with `]`".to_owned());
        }
        loop {
            for sets in ["&&", "--", "~~"] {
                if self.rest.starts_with(sets.as_bytes()) {
                    return Err(format!("`{sets}` in a class is not taken"));
                }
            }
            match self.next() {
                None => return Err("a class has no end".to_owned()),
                Some(b']') => return Ok(()),
                Some(b'[') => return Err("a `[` in a class must be escaped".to_owned()),
                Some(b'\\') => {
                    self.escape(true)?;
                }
                Some(byte) => printable(byte)?,
            }
        }
    }
}

fn printable(byte: u8) -> Result<(), String> {
    if byte.is_ascii_graphic() || byte == b' ' {
        Ok(())
    } else {
        Err("names of tensors are printable ASCII".to_owned())
    }
}

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
    const REFUSED: &str = r"
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
        for pattern in REFUSED.trim().lines().chain(["\u{e9}", "a\nb"]) {
            let error = Pattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains("tensor_buft_overrides"), "{error}");
        }
    }
}
