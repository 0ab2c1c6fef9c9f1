//! Names of GPUs in any spelling: `NVIDIA GeForce RTX 4090`, `rtx4090`, `Intel(R) Arc(tm) A770 Graphics (DG2)`.

/// Words that do not distinguish cards. `Laptop`, `Ti`, `SUPER`, `Max-Q`, `Quadro` and `Ada` do distinguish cards and
/// are kept.
const NOISE: &str = "nvidia geforce tesla amd ati radeon instinct intel arc apple graphics gpu generation edition";

/// A name in a canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// The words in lower case, without spaces: `rtx4090`, `a100sxm4`.
    pub(super) key: String,
    /// The memory size in the name, in GiB: when makers state the size of a card in GB, they mean GiB.
    pub(super) gib: Option<u64>,
    /// The separate words.
    pub(super) words: Vec<String>,
}

impl Name {
    pub(super) fn parse(text: &str) -> Self {
        let text = without_brackets(&text.to_lowercase());
        let is_noise = |word: &str| NOISE.split(' ').any(|noise| noise == word);
        let mut words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty() && !is_noise(word));
        let mut name = Self { key: String::new(), gib: None, words: Vec::new() };
        while let Some(word) = words.next() {
            let size = word.strip_suffix("gib").or_else(|| word.strip_suffix("gb"));
            let next = words.clone().next();
            if let Some(size) = size.and_then(|number| number.parse().ok()) {
                name.gib = Some(size);
            } else if let (Ok(size), Some("gb" | "gib")) = (word.parse(), next) {
                name.gib = Some(size);
                words.next();
            } else {
                name.key.push_str(word);
                name.words.push(word.to_owned());
            }
        }
        name
    }
}

/// Removes brackets with their content: `(R)`, `(tm)`, and the chip or driver that Mesa adds.
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
