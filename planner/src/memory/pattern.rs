//! The patterns of tensor overrides: regular expressions, read by `regex-lite` alone.
//!
//! A pattern may come from somebody else's plan, and llama.cpp's `std::regex` backtracks: a dozen characters,
//! `(.|.|.|..)+!`, take it hours, and a long pattern overflows its stack. So llama.cpp is given none of them, but
//! [the names](by_name) that they match by `regex-lite`, whose time is the pattern's length times the name's: at most
//! about a second for a thousand names.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::{Regex, RegexBuilder};

use super::{Error, Place, TensorOverride};

/// Bytes that the patterns of a plan may have together. Ours have some 2 KiB where a model has the most blocks.
const LONGEST: usize = 4 << 10;

/// Bytes that the names given to llama.cpp may have together: it compiles them again for every tensor.
const LONGEST_NAMES: usize = 8 << 10;

/// Bytes of a compiled pattern for each of its own: a character takes 32, a group or a class of a few ranges twice
/// that. `(a{99}){99}` wants thousands.
const COMPILED: usize = 64;

/// A pattern that no name matches: an override that moves nothing.
pub(crate) const NOTHING: &str = "^$";

/// Overrides, ready to be asked by name.
#[derive(Debug, Clone)]
pub(crate) struct OverrideRules(Vec<(Pattern, Place)>);

#[derive(Debug, Clone)]
enum Pattern {
    /// As the search writes them, `^blk\.(1|2)\.(ffn_up|ffn_down)\.`: of each name a regular expression tries every
    /// number, a sixth of the time of a plan for 80 blocks.
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
        let regex = RegexBuilder::new(pattern).size_limit(COMPILED * (pattern.len() + 8)).build();
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
    /// Reads the patterns of overrides on so many GPUs.
    pub(crate) fn new(overrides: &[TensorOverride], n_gpus: usize) -> Result<Self, Error> {
        let mut length = 0;
        let rule = |TensorOverride { pattern, place }: &TensorOverride| {
            length += pattern.len() + 1;
            if length > LONGEST {
                let reason = format!("the patterns have more than {LONGEST} bytes together");
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

    /// Where the weight of this name goes, if elsewhere than its layer: the first pattern found in it decides.
    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        self.0.iter().find(|(pattern, _)| pattern.is_in(name)).map(|&(_, place)| place)
    }
}

/// Overrides with patterns that list those of a model's tensors which these move: `^blk\.(1|2)\.ffn_up\.weight$`.
///
/// Blocks of which the same weights move share a pattern, which keeps a thousand names in some hundred bytes.
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
    if length > LONGEST_NAMES {
        return Err(refused(
            first,
            format!(
                "the tensors of all patterns differ too much from block to block: \
                 their names take {length} bytes, and llama.cpp is given at most {LONGEST_NAMES}"
            ),
        ));
    }
    Ok(listed)
}

/// The letters of llama.cpp's names (llama-arch.cpp, `LLM_TENSOR_NAMES`): it asks for no others.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.')
}

/// A name, cut before and behind the number of its block, if it has one.
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

/// A pattern for these texts of plain characters, which are sorted: what they begin and end with is in it once.
///
/// llama.cpp compiles a pattern again for every tensor: of a list of 48 blocks, of which three weights move, that was
/// more than half of what it took to load a model of 80 blocks without its data.
fn any_of(texts: &[&str]) -> String {
    let [first, _, ..] = texts else {
        return texts.concat().replace('.', r"\.");
    };
    let same = |text: &str| text.bytes().zip(first.bytes()).take_while(|(byte, of_first)| byte == of_first).count();
    let (begin, rests) = first.split_at(texts.iter().map(|text| same(text)).min().unwrap_or_default());
    let same = |rest: &str| rest.bytes().rev().zip(rests.bytes().rev()).take_while(|(byte, it)| byte == it).count();
    let end = texts.iter().map(|text| same(&text[begin.len()..])).min().unwrap_or_default();
    let mut middles: Vec<&str> = texts.iter().map(|text| &text[begin.len()..text.len() - end]).collect();
    middles.retain(|middle| !middle.is_empty());
    let mut middle = match middles[..] {
        // No tensor's number has another character there, and a class of characters takes longer to compile.
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

/// The error of a pattern, of which a plan may have said a megabyte.
fn refused(pattern: &str, reason: String) -> Error {
    Error::Override { pattern: pattern.chars().take(64).collect(), reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_lite::Regex;

    use super::{LONGEST_NAMES, NOTHING, Pattern, any_of, by_name};
    use crate::memory::{Place, TensorOverride};

    fn names(rules: &[(&str, Place)], tensors: &[&str]) -> Vec<(String, Place)> {
        let rules: Vec<_> = rules.iter().map(|(pattern, place)| TensorOverride::new(*pattern, *place)).collect();
        let listed = by_name(&rules, &mut tensors.iter().copied()).unwrap();
        listed.into_iter().map(|rule| (rule.pattern, rule.place)).collect()
    }

    #[test]
    fn llama_cpp_is_given_the_names_that_match_and_of_several_patterns_the_first() {
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
        // Overrides that move nothing are overrides still: llama.cpp keeps one copy of its graphs' inputs then.
        assert_eq!(names(&[("x", Place::Gpu(0))], &tensors), [(NOTHING.to_owned(), Place::Host)]);
        assert_eq!(names(&[], &tensors), []);
    }

    #[test]
    fn a_pattern_has_what_its_names_share_once() {
        let sorted = |numbers: std::ops::Range<u32>| {
            let mut numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
            numbers.sort_unstable();
            numbers
        };
        for (texts, expected) in [
            (sorted(32..80), "(3(2|3|4|5|6|7|8|9)|4.|5.|6.|7.)"),
            (sorted(0..14), "(0|1(0|1|2|3)?|2|3|4|5|6|7|8|9)"),
            (sorted(100..110), "10."),
            (["_down", "_gate", "_up"].map(|it| format!(".ffn{it}.weight")).to_vec(), r"\.ffn_(down|gate|up)\.weight"),
        ] {
            assert_eq!(any_of(&texts.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_its_names_alone(
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
    fn what_the_search_writes_is_read_without_a_regular_expression_and_means_the_same() {
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
    fn names_that_no_few_patterns_list_are_refused() {
        let tensors: Vec<String> = (0..512_u32)
            .flat_map(|block| (0..9).map(move |bit| (block, bit)))
            .filter(|(block, bit)| block >> bit & 1 == 1)
            .map(|(block, bit)| format!("blk.{block}.weight_{bit}.weight"))
            .collect();
        let mut tensors = tensors.iter().map(String::as_str);
        let error = by_name(&[TensorOverride::new("", Place::Host)], &mut tensors).unwrap_err();
        assert!(error.to_string().contains(&LONGEST_NAMES.to_string()), "{error}");
    }
}
