//! The patterns of tensor overrides. They are regular expressions, which only `regex-lite` evaluates, never llama.cpp.
//!
//! A pattern may come from another person's plan, and llama.cpp's `std::regex` backtracks: a dozen characters,
//! `(.|.|.|..)+!`, take hours, and a long pattern overflows the stack. llama.cpp therefore never receives such a
//! pattern. It receives [the names](by_name) that `regex-lite` matches with the pattern. The time of `regex-lite` grows
//! at most with the product of the lengths of pattern and name: it is about a second for a thousand names.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::{Regex, RegexBuilder};

use super::{Error, Place, TensorOverride};

/// Maximum bytes of all patterns of a plan. The patterns that the planner writes have about 2 KiB for the models with
/// the most blocks.
const MAX_PATTERN_BYTES: usize = 4 << 10;

/// The maximum number of bytes in the names that llama.cpp gets. llama.cpp compiles these names again for every tensor.
const MAX_NAME_BYTES: usize = 8 << 10;

/// The compiled form of a pattern may have this many bytes for each byte of the pattern's text. A character takes 32
/// bytes, and a group or a class of a few ranges takes 64. `(a{99}){99}` would need thousands of bytes for each byte.
const COMPILED_BYTES_PER_BYTE: usize = 64;

/// A pattern that no name matches: its override moves nothing.
pub(crate) const NOTHING: &str = "^$";

/// Overrides with parsed patterns, for lookup by a weight's name.
#[derive(Debug, Clone)]
pub(crate) struct OverrideRules(Vec<(Pattern, Place)>);

#[derive(Debug, Clone)]
enum Pattern {
    /// The form that the search writes: `^blk\.(1|2)\.(ffn_up|ffn_down)\.`. The form is parsed here, because a regular
    /// expression would compare each name with every number. That took a sixth of the planning time for 80 blocks.
    Parts {
        blocks: BTreeSet<String>,
        stems: BTreeSet<String>,
    },
    Any(Regex),
}

impl Pattern {
    fn read(pattern: &str) -> Result<Self, Error> {
        if let Some(parts) = Self::parts(pattern) {
            return Ok(parts);
        }
        let regex = RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_PER_BYTE * (pattern.len() + 8)).build();
        regex.map(Self::Any).map_err(|error| refused(pattern, error.to_string()))
    }

    fn parts(pattern: &str) -> Option<Self> {
        let (blocks, stems) = pattern.strip_prefix(r"^blk\.")?.strip_suffix(r"\.")?.split_once(r"\.")?;
        let list = |list: &str| {
            let many = list.strip_prefix('(').and_then(|list| list.strip_suffix(')'));
            let texts: BTreeSet<String> =
                many.map_or(vec![list], |many| many.split('|').collect()).into_iter().map(str::to_owned).collect();
            let is_text = |text: &String| !text.is_empty() && text.bytes().all(|byte| is_plain(byte) && byte != b'.');
            texts.iter().all(is_text).then_some(texts)
        };
        Some(Self::Parts { blocks: list(blocks)?, stems: list(stems)? })
    }

    fn is_in(&self, name: &str) -> bool {
        match self {
            Self::Any(regex) => regex.is_match(name),
            Self::Parts { blocks, stems } => {
                let mut parts = name.split('.');
                let begins = parts.next() == Some("blk") && parts.next().is_some_and(|block| blocks.contains(block));
                begins && parts.next().is_some_and(|stem| stems.contains(stem)) && parts.next().is_some()
            }
        }
    }
}

impl OverrideRules {
    /// Reads the patterns of overrides for a machine with `n_gpus` GPUs.
    pub(crate) fn new(overrides: &[TensorOverride], n_gpus: usize) -> Result<Self, Error> {
        let mut length = 0;
        let rule = |TensorOverride { pattern, place }: &TensorOverride| {
            length += pattern.len() + 1;
            if length > MAX_PATTERN_BYTES {
                let reason = format!("the patterns have more than {MAX_PATTERN_BYTES} bytes together");
                return Err(refused(pattern, reason));
            }
            match *place {
                Place::Gpu(gpu) if gpu >= n_gpus => {
                    Err(refused(pattern, format!("there is no GPU {gpu}: there are {n_gpus}")))
                }
                place => Ok((Pattern::read(pattern)?, place)),
            }
        };
        overrides.iter().map(rule).collect::<Result<_, _>>().map(Self)
    }

    /// The place of the weight with this name, if an override moves it. The first pattern that is found in the name
    /// decides.
    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        self.0.iter().find(|(pattern, _)| pattern.is_in(name)).map(|&(_, place)| place)
    }
}

/// Overrides whose patterns list the tensors that the given overrides move: `^blk\.(1|2)\.ffn_up\.weight$`.
///
/// Blocks with the same moved weights share a pattern, so that a thousand names take some hundred bytes.
pub(super) fn by_name(
    overrides: &[TensorOverride],
    tensors: &mut dyn Iterator<Item = &str>,
) -> Result<Vec<TensorOverride>, Error> {
    let Some(TensorOverride { pattern: first, .. }) = overrides.first() else {
        return Ok(Vec::new());
    };
    let rules = OverrideRules::new(overrides, usize::MAX)?;
    let mut weights: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for name in tensors.filter(|name| name.bytes().all(is_plain)) {
        if let Some(place) = rules.place(name) {
            let (list, number, weight) = at_number(name);
            weights.entry((place, list, number)).or_default().insert(weight);
        }
    }
    let mut blocks: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for ((place, list, number), weights) in weights {
        let weights: Vec<&str> = weights.into_iter().collect();
        blocks.entry((place, list, weights)).or_default().push(number);
    }
    let listed = blocks.into_iter().map(|((place, list, weights), numbers)| {
        let list = list.replace('.', r"\.");
        TensorOverride::new(format!("^{list}{}{}$", any_of(&numbers), any_of(&weights)), place)
    });
    let mut listed: Vec<_> = listed.collect();
    if listed.is_empty() {
        listed.push(TensorOverride::new(NOTHING, Place::Host));
    }
    let length: usize = listed.iter().map(|rule| rule.pattern.len()).sum();
    if length > MAX_NAME_BYTES {
        return Err(refused(
            first,
            format!(
                "the patterns move different tensors in too many blocks: \
                 the names take {length} bytes, and at most {MAX_NAME_BYTES} are passed to llama.cpp"
            ),
        ));
    }
    Ok(listed)
}

/// Whether this character occurs in llama.cpp's tensor names (llama-arch.cpp, `LLM_TENSOR_NAMES`). No tensor that
/// llama.cpp looks for has other characters in its name.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.')
}

/// Splits a name before and after its block number, if there is one.
fn at_number(name: &str) -> (&str, &str, &str) {
    let mut begin = 0;
    for part in name.split('.') {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            let end = begin + part.len();
            return (&name[..begin], part, &name[end..]);
        }
        begin += part.len() + 1;
    }
    ("", "", name)
}

/// A pattern for these sorted texts of plain characters. If the texts have a common beginning or end, the pattern
/// contains it only once.
///
/// The pattern must be short, because llama.cpp compiles it again for every tensor. For an 80-block model, a plain list
/// of 48 blocks with three moved weights each took more than half of the time of a load without data.
fn any_of(texts: &[&str]) -> String {
    let [first, _, ..] = texts else {
        return texts.concat().replace('.', r"\.");
    };
    let same = |text: &str| text.bytes().zip(first.bytes()).take_while(|(byte, of_first)| byte == of_first).count();
    let (begin, rests) = first.split_at(texts.iter().map(|text| same(text)).min().unwrap_or_default());
    let same =
        |rest: &str| rest.bytes().rev().zip(rests.bytes().rev()).take_while(|(byte, of_rest)| byte == of_rest).count();
    let end = texts.iter().map(|text| same(&text[begin.len()..])).min().unwrap_or_default();
    let mut middles: Vec<&str> = texts.iter().map(|text| &text[begin.len()..text.len() - end]).collect();
    middles.retain(|middle| !middle.is_empty());
    let mut middle = match middles[..] {
        // Tensor names have no other character in this position, and a character class takes longer to compile.
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] => ".".to_owned(),
        _ => {
            let alike = middles.chunk_by(|one, next| one.bytes().next() == next.bytes().next());
            format!("({})", alike.map(any_of).collect::<Vec<_>>().join("|"))
        }
    };
    if middles.len() < texts.len() {
        middle.push('?');
    }
    [any_of(&[begin]), middle, any_of(&[&rests[rests.len() - end..]])].concat()
}

/// The error for a pattern; it quotes at most 64 characters of the pattern.
fn refused(pattern: &str, reason: String) -> Error {
    Error::Override { pattern: pattern.chars().take(64).collect(), reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_lite::Regex;

    use super::{MAX_NAME_BYTES, NOTHING, Pattern, any_of, by_name};
    use crate::memory::{Place, TensorOverride};

    fn names(rules: &[(&str, Place)], tensors: &[&str]) -> Vec<(String, Place)> {
        let rules: Vec<_> = rules.iter().map(|(pattern, place)| TensorOverride::new(*pattern, *place)).collect();
        let listed = by_name(&rules, &mut tensors.iter().copied()).unwrap();
        listed.into_iter().map(|rule| (rule.pattern, rule.place)).collect()
    }

    #[test]
    fn llama_cpp_is_given_the_matching_names_under_their_first_pattern() {
        let tensors = [
            "token_embd.weight",
            "output.weight",
            "blk.0.ffn_up.weight",
            "blk.1.ffn_up.weight",
            "blk.1.ffn_up.bias",
            "blk.10.ffn_up.weight",
            "enc.blk.1.ffn_up.weight",
            "blk.1.ffn_up.weight\n",
        ];
        let rules = [(r"blk\.1\.", Place::Gpu(0)), ("(f|f.)+_up", Place::Host), ("^output", Place::Host)];
        let expected = [
            (r"^output\.weight$", Place::Host),
            (r"^blk\.(1)?0\.ffn_up\.weight$", Place::Host),
            (r"^blk\.1\.ffn_up\.(bias|weight)$", Place::Gpu(0)),
            (r"^enc\.blk\.1\.ffn_up\.weight$", Place::Gpu(0)),
        ];
        let expected = expected.map(|(pattern, place)| (pattern.to_owned(), place));
        assert_eq!(names(&rules, &tensors), expected);
        // Overrides that move nothing still count as overrides: llama.cpp then keeps one copy of its graph inputs.
        assert_eq!(names(&[("x", Place::Gpu(0))], &tensors), [(NOTHING.to_owned(), Place::Host)]);
        assert_eq!(names(&[], &tensors), []);
    }

    #[test]
    fn a_pattern_contains_the_shared_parts_of_its_names_only_once() {
        let sorted = |numbers: std::ops::Range<u32>| {
            let mut numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
            numbers.sort_unstable();
            numbers
        };
        for (texts, expected) in [
            (sorted(32..80), "(3(2|3|4|5|6|7|8|9)|4.|5.|6.|7.)"),
            (sorted(0..14), "(0|1(0|1|2|3)?|2|3|4|5|6|7|8|9)"),
            (sorted(100..110), "10."),
            (
                ["_down", "_gate", "_up"].map(|stem| format!(".ffn{stem}.weight")).to_vec(),
                r"\.ffn_(down|gate|up)\.weight",
            ),
        ] {
            assert_eq!(any_of(&texts.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_only_its_names(
            names in prop::collection::btree_set("[a1._]{0,5}", 1..20),
            others in prop::collection::vec("[a1._]{0,5}", 20),
        ) {
            let pattern = any_of(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let regex = Regex::new(&format!("^{pattern}$")).unwrap();
            for text in names.iter().chain(&others) {
                prop_assert_eq!(regex.is_match(text), names.contains(text), "{}: {}", &pattern, text);
            }
        }
    }

    #[test]
    fn patterns_of_the_search_are_read_without_a_regular_expression() {
        let names = ["blk.1.ffn_up.weight", "blk.12.ffn_up.bias", "blk.2.ffn_up", "blk.2.ffn_upper.weight", "blk..x."];
        let names = names.into_iter().chain(["blk.3.ffn_down.weight", "enc.blk.1.ffn_up.weight", "blk.1", "2.ffn_up."]);
        for (pattern, is_list) in [
            (r"^blk\.(1|2|3)\.(ffn_down|ffn_up)\.", true),
            (r"^blk\.12\.ffn_up\.", true),
            (r"^blk\.1|2\.ffn_up\.", false),
            (r"^blk\.(1|)\.ffn_up\.", false),
            (r"^blk\.1\.ffn_up\.weight\.", false),
            (r"^blk\..\.ffn_up\.", false),
            (r"blk\.1\.ffn_up\.", false),
            (r"^blk\.1\.ffn_up", false),
        ] {
            let read = Pattern::read(pattern).unwrap();
            assert_eq!(matches!(read, Pattern::Parts { .. }), is_list, "{pattern}");
            for name in names.clone() {
                assert_eq!(read.is_in(name), Regex::new(pattern).unwrap().is_match(name), "{pattern}: {name}");
            }
        }
    }

    #[test]
    fn a_pattern_costs_no_more_than_its_length() {
        let long = "a".repeat(1 << 20);
        let deep = "(".repeat(300) + &")".repeat(300);
        for pattern in ["(a{1000}){1000}", "a{4294967295}", "(?:){4294967295}", &long, &deep] {
            let rules = [TensorOverride::new(pattern, Place::Host)];
            let error = by_name(&rules, &mut [].into_iter()).unwrap_err().to_string();
            assert!(error.starts_with("tensor_buft_overrides `") && error.len() < 200, "{error}");
        }
        let many = vec![TensorOverride::new("", Place::Host); 5000];
        let error = by_name(&many, &mut [].into_iter()).unwrap_err().to_string();
        assert!(error.contains("together"), "{error}");
    }

    #[test]
    fn names_that_need_too_many_patterns_are_refused() {
        let tensors: Vec<String> = (0..512_u32)
            .flat_map(|block| (0..9).map(move |bit| (block, bit)))
            .filter(|(block, bit)| block >> bit & 1 == 1)
            .map(|(block, bit)| format!("blk.{block}.weight_{bit}.weight"))
            .collect();
        let mut tensors = tensors.iter().map(String::as_str);
        let error = by_name(&[TensorOverride::new("", Place::Host)], &mut tensors).unwrap_err();
        assert!(error.to_string().contains(&MAX_NAME_BYTES.to_string()), "{error}");
    }
}
