//! Names of GPUs and processors, whoever writes them: `NVIDIA GeForce RTX 4090`, `rtx4090`,
//! `Intel(R) Arc(tm) A770 Graphics (DG2)`, `13th Gen Intel(R) Core(TM) i9-13900K`.

/// Words that tell no card or processor from another. `Laptop`, `Ti`, `SUPER`, `Max-Q`, `Quadro` and `Ada` do, and
/// stay.
const NOISE: &str = "nvidia geforce tesla amd ati radeon instinct intel arc apple graphics gpu generation edition \
    cpu core processor gen 11th 12th 13th 14th";

/// A name in a form that two writers agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// What is left of it in small letters: `rtx` and `4090`, `i9` and `13900k`.
    pub(super) words: Vec<String>,
    /// The size of memory that it says, in GiB, which is what makers mean by the GB of a card.
    pub(super) gib: Option<u64>,
}

impl Name {
    pub(super) fn parse(text: &str) -> Self {
        let text = without_brackets(&text.to_lowercase());
        // What follows is a processor's clock or its GPU.
        let text = text.split('@').next().unwrap_or_default();
        let text = text.split(" w/").next().unwrap_or_default();
        // `16-Core Processor`
        let parts = text.split_whitespace().filter(|part| !part.ends_with("-core"));
        let words = parts.flat_map(|part| part.split(|c: char| !c.is_alphanumeric()));
        let is_noise = |word: &str| NOISE.split(' ').any(|noise| noise == word);
        let mut words = words.filter(|word| !word.is_empty() && !is_noise(word));
        let mut name = Self { words: Vec::new(), gib: None };
        while let Some(word) = words.next() {
            let size = word.strip_suffix("gib").or_else(|| word.strip_suffix("gb"));
            let next = words.clone().next();
            if let Some(size) = size.and_then(|number| number.parse().ok()) {
                name.gib = Some(size);
            } else if let (Ok(size), Some("gb" | "gib")) = (word.parse(), next) {
                name.gib = Some(size);
                words.next();
            } else {
                name.words.push(word.to_owned());
            }
        }
        name
    }

    /// Its words without spaces: `rtx4090`, `a100sxm4`.
    pub(super) fn key(&self) -> String {
        self.words.concat()
    }
}

/// The names that are like what was asked for: at most five, the nearest first, each once.
pub(super) fn near(asked: &Name, names: impl Iterator<Item = &'static str>) -> Vec<String> {
    let asked = asked.key();
    let likely = names.map(|name| (likeness(&Name::parse(name).key(), &asked), name));
    let mut likely: Vec<(u8, &str)> = likely.filter(|(likeness, _)| *likeness >= 60).collect();
    likely.sort_by_key(|(likeness, _)| std::cmp::Reverse(*likeness));
    let mut names: Vec<String> = Vec::new();
    for (_, name) in likely {
        if names.len() < 5 && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// How alike two keys are, of 100: by the letters that one would have to change, and more where one is a part of the
/// other.
fn likeness(one: &str, other: &str) -> u8 {
    if one.is_empty() || other.is_empty() {
        return 0;
    }
    let likeness = strsim::normalized_damerau_levenshtein(one, other);
    let percent = (likeness * 100.0) as u8;
    let is_part = one.contains(other) || other.contains(one);
    if is_part && one.len().min(other.len()) >= 3 { percent / 2 + 50 } else { percent }
}

/// Without what stands in brackets: `(R)`, `(tm)`, and the chip or driver that Mesa adds.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    let outside = text.chars().filter(|c| {
        match c {
            '(' => depth = depth.saturating_add(1),
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    });
    outside.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{Name, likeness};

    proptest! {
        #[test]
        fn no_text_makes_parsing_panic_and_every_name_is_like_itself(text in any::<String>(), other in any::<String>()) {
            let (name, other) = (Name::parse(&text).key(), Name::parse(&other).key());
            prop_assert!(name.is_empty() || likeness(&name, &name) == 100);
            prop_assert!(likeness(&name, &other) <= 100);
        }
    }
}
