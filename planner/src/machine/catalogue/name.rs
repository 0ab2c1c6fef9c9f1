//! Names of GPUs, whoever writes them: `NVIDIA GeForce RTX 4090`, `rtx4090`, `Intel(R) Arc(tm) A770 Graphics (DG2)`.

/// Words that tell no card from another. `Laptop`, `Ti`, `SUPER`, `Max-Q`, `Quadro` and `Ada` do, and stay.
const NOISE: [&str; 14] = [
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "ati",
    "radeon",
    "instinct",
    "intel",
    "arc",
    "apple",
    "graphics",
    "gpu",
    "generation",
    "edition",
];

/// A name in a form that two writers agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// What is left of it in small letters, without spaces: `rtx4090`, `a100sxm4`.
    pub(super) key: String,
    /// The size of memory that it says, in GiB, which is what makers mean by the GB of a card.
    pub(super) gib: Option<u64>,
}

impl Name {
    pub(super) fn parse(text: &str) -> Self {
        let text = without_brackets(&text.to_lowercase());
        let words: Vec<&str> = text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty() && !NOISE.contains(word))
            .collect();
        let mut name = Self {
            key: String::new(),
            gib: None,
        };
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let next = words.peek().copied();
            if let Some(size) = unit_of(word).and_then(|number| number.parse().ok()) {
                name.gib = Some(size);
            } else if let (Ok(size), Some("gb" | "gib")) = (word.parse(), next) {
                name.gib = Some(size);
                words.next();
            } else {
                name.key.push_str(word);
            }
        }
        name
    }

    /// How alike two names are, of 100: by the letters that one would have to change, and more where one is a
    /// part of the other.
    pub(super) fn likeness(&self, other: &Self) -> u8 {
        if self.key.is_empty() || other.key.is_empty() {
            return 0;
        }
        let likeness = strsim::normalized_damerau_levenshtein(&self.key, &other.key);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 100
        let percent = (likeness * 100.0) as u8;
        let is_part = self.key.contains(&other.key) || other.key.contains(&self.key);
        let long_enough = self.key.len().min(other.key.len()) >= 3;
        if is_part && long_enough {
            percent / 2 + 50
        } else {
            percent
        }
    }
}

/// The number before `gb` or `gib`.
fn unit_of(word: &str) -> Option<&str> {
    word.strip_suffix("gib").or_else(|| word.strip_suffix("gb"))
}

/// Without what stands in brackets: `(R)`, `(tm)`, and the chip or driver that Mesa adds.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|c| match c {
            '(' => {
                depth = depth.saturating_add(1);
                false
            }
            ')' => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::Name;

    #[test]
    fn makers_and_brackets_are_left_out_and_a_size_is_set_apart() {
        for (text, key, gib) in [
            ("NVIDIA GeForce RTX 4090", "rtx4090", None),
            ("NVIDIA A100-SXM4-80GB", "a100sxm4", Some(80)),
            ("NVIDIA H100 80GB HBM3", "h100hbm3", Some(80)),
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", "a770", None),
            ("RTX 3060 12 GB", "rtx3060", Some(12)),
            ("RTX 4090 Laptop GPU", "rtx4090laptop", None),
            ("Quadro RTX 6000", "quadrortx6000", None),
            ("RTX 6000 Ada Generation", "rtx6000ada", None),
            ("8gb", "", Some(8)),
            ("gb", "gb", None),
            ("NVIDIA GB10", "gb10", None),
            (")(", "", None),
        ] {
            let name = Name::parse(text);
            assert_eq!((name.key.as_str(), name.gib), (key, gib), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_panic_and_every_name_is_like_itself(text in any::<String>(), other in any::<String>()) {
            let (name, other) = (Name::parse(&text), Name::parse(&other));
            prop_assert!(name.key.is_empty() || name.likeness(&name) == 100);
            prop_assert!(name.likeness(&other) <= 100);
        }
    }
}
