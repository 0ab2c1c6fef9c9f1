//! The expressions of a grammar: character classes, tokens, references to rules, and their combinations.

/// The last code point.
const LAST: u32 = 0x10_FFFF;

/// A set of Unicode characters: sorted ranges that do not touch, without surrogates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Chars(Vec<(u32, u32)>);

impl Chars {
    /// The characters of these ranges of code points. Surrogates match nothing, as in llama.cpp. NUL matches nothing
    /// either, because llama.cpp ends a text at a NUL.
    pub(super) fn from_ranges(ranges: &[(u32, u32)]) -> Self {
        let mut sorted: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for &(low, high) in ranges {
            let high = high.min(LAST);
            // Surrogates (0xD800 to 0xDFFF) are not characters.
            for (low, high) in [(low.max(1), high.min(0xD7FF)), (low.max(0xE000), high)] {
                if low <= high {
                    sorted.push((low, high));
                }
            }
        }
        Self::joined(sorted)
    }

    /// The union of ranges.
    fn joined(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match joined.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => joined.push((low, high)),
            }
        }
        Self(joined)
    }

    /// A set with one surrogate. Among neighbouring characters, it stands for the beginning or the end of a text.
    pub(super) fn edge_of_text() -> Self {
        Self(vec![(0xD800, 0xD800)])
    }

    pub(super) fn all() -> Self {
        Self::from_ranges(&[(1, LAST)])
    }

    /// All characters that are not in this set.
    pub(super) fn negated(&self) -> Self {
        let (mut others, mut next) = (Vec::new(), 0);
        for &(low, high) in &self.0 {
            if next < low {
                others.push((next, low - 1));
            }
            next = high + 1;
        }
        others.push((next, LAST));
        Self::from_ranges(&others)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Adds the characters of another set. Returns whether any of them was new.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        let union = Self::joined([&self.0[..], &other.0].concat());
        let is_more = union != *self;
        *self = union;
        is_more
    }

    /// Whether the two sets share a character.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(low, high)), Some(&&(other_low, other_high))) = (ours.peek(), theirs.peek()) {
            if low.max(other_low) <= high.min(other_high) {
                return true;
            }
            if high < other_high {
                ours.next();
            } else {
                theirs.next();
            }
        }
        false
    }
}

/// An expression in a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// One character of a set.
    Chars(Chars),
    /// One token of the vocabulary, or any other token if negated.
    Token { id: u32, is_negated: bool },
    /// A reference to a rule, by index.
    Rule(usize),
    /// All parts in order.
    Sequence(Vec<Expr>),
    /// One of the alternatives.
    Choice(Vec<Expr>),
    /// `least` to `most` repetitions. Without `most`, there is no upper limit.
    Repeat { inner: Box<Expr>, least: u32, most: Option<u32> },
}

impl Expr {
    pub(super) fn empty() -> Self {
        Self::Sequence(Vec::new())
    }

    /// A sequence of parts. A single part stands for itself.
    pub(super) fn sequence(mut parts: Vec<Expr>) -> Self {
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::Sequence(parts),
        }
    }

    /// A choice of alternatives. A single alternative stands for itself.
    pub(super) fn choice(mut alternatives: Vec<Expr>) -> Self {
        match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Self::Choice(alternatives),
        }
    }

    pub(super) fn repeat(inner: Expr, least: u32, most: Option<u32>) -> Self {
        Self::Repeat { inner: Box::new(inner), least, most }
    }

    /// The direct parts of the expression.
    pub(super) fn parts(&self) -> &[Expr] {
        match self {
            Self::Chars(_) | Self::Token { .. } | Self::Rule(_) => &[],
            Self::Sequence(parts) | Self::Choice(parts) => parts,
            Self::Repeat { inner, .. } => std::slice::from_ref(inner),
        }
    }

    /// Number of expressions, including this one.
    pub(super) fn size(&self) -> usize {
        1 + self.parts().iter().map(Self::size).sum::<usize>()
    }

    /// Whether this expression or any part satisfies `is_so`.
    pub(super) fn any(&self, is_so: &mut dyn FnMut(&Expr) -> bool) -> bool {
        is_so(self) || self.parts().iter().any(|part| part.any(is_so))
    }

    /// Replaces parts by `by`, from the outside in.
    pub(super) fn replace(&mut self, by: &dyn Fn(&Expr) -> Option<Expr>) {
        if let Some(other) = by(self) {
            *self = other;
            return;
        }
        match self {
            Self::Chars(_) | Self::Token { .. } | Self::Rule(_) => {}
            Self::Sequence(parts) | Self::Choice(parts) => parts.iter_mut().for_each(|part| part.replace(by)),
            Self::Repeat { inner, .. } => inner.replace(by),
        }
    }

    /// Whether the expression names this rule.
    pub(super) fn names(&self, rule: usize) -> bool {
        self.any(&mut |part| *part == Self::Rule(rule))
    }

    /// Whether the expression can be empty. `rules` contains for each rule whether it can be empty.
    pub(super) fn is_nullable(&self, rules: &[bool]) -> bool {
        match self {
            Self::Chars(_) | Self::Token { .. } => false,
            Self::Rule(rule) => rules[*rule],
            Self::Sequence(parts) => parts.iter().all(|part| part.is_nullable(rules)),
            Self::Choice(alternatives) => alternatives.iter().any(|alternative| alternative.is_nullable(rules)),
            Self::Repeat { inner, least, most } => *least == 0 || *most == Some(0) || inner.is_nullable(rules),
        }
    }
}

/// A rule of a grammar.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) name: String,
    /// Byte offset of the first mention of the rule.
    pub(super) at: usize,
    pub(super) body: Expr,
}
