//! GBNF, llama.cpp's notation of grammars, on the tree of a vocabulary.
//!
//! In: the text of a grammar. Out: which tokens a text that follows it can go on with. It takes every reading of a text at once, a
//! character at a time, as llama.cpp does, so that each grammar allows here what it allows there; but what a state and a character lead
//! to is computed once, and so is the mask of a state, where llama.cpp goes through the vocabulary before each token.

mod left_recursion;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use llguidance::toktrie::{Recognizer, TokTrie};

use parse::{Chars, Element, Rules};

/// Readings of a text at once.
const MAX_READINGS: usize = 10_000;
/// What one mask may take, in readings that are gone on with: some tens of milliseconds.
const FUEL: usize = 2_000_000;
/// Places in readings, over the whole text.
const MAX_NODES: usize = 1 << 20;
/// Readings in all states that are kept, of 4 bytes each.
const MAX_KEPT: usize = 1 << 21;
/// What a state takes besides, in readings: itself, and its entries in two tables.
const STATE: usize = 32;
/// Masks that are kept, of at most 32 KiB each for the vocabularies there are.
const MAX_MASKS: usize = 256;
/// Steps that are kept.
const MAX_STEPS: usize = 1 << 20;

/// The end of a text: nothing is left of a reading.
const END: u32 = 0;

const TOO_MUCH: &str = "one step of it has more readings than are followed";

/// One text that follows a grammar, as far as it has come.
#[derive(Debug, Clone)]
pub(super) struct Text {
    grammar: Arc<Grammar>,
    /// What is left of a reading: an element, and the place to go on at after its rule.
    nodes: Vec<(u32, u32)>,
    node_ids: HashMap<(u32, u32), u32>,
    /// What is left of all readings, in order.
    states: Vec<Arc<[u32]>>,
    state_ids: HashMap<Arc<[u32]>, u32>,
    /// What the states take, in readings.
    kept: usize,
    /// The state after another and a character, if there is one.
    steps: HashMap<(u32, u32), Option<u32>>,
    masks: HashMap<At, Arc<[u32]>>,
    fuel: usize,
    at: At,
}

/// How far a text has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct At {
    state: u32,
    /// A character that has begun: its bits so far, and the bytes that are missing.
    bits: u32,
    missing: u8,
}

/// The rules, one element after the other; `None` ends an alternative.
#[derive(Debug)]
struct Grammar {
    elements: Vec<Option<Element>>,
    /// Where the alternatives of each rule begin.
    rules: Vec<Vec<u32>>,
}

impl Grammar {
    fn new(rules: Vec<Vec<Vec<Element>>>) -> Self {
        // Nothing is at place 0, so that no node is the end.
        let mut elements = vec![None];
        let rules = rules.into_iter().map(|alternatives| {
            let begin = |alternative: Vec<Element>| {
                let at = elements.len() as u32;
                elements.extend(alternative.into_iter().map(Some));
                elements.push(None);
                at
            };
            alternatives.into_iter().map(begin).collect()
        });
        let rules = rules.collect();
        Self { elements, rules }
    }

    fn element(&self, at: u32) -> Option<&Element> {
        self.elements.get(at as usize).and_then(Option::as_ref)
    }
}

impl Chars {
    fn has(&self, c: u32) -> bool {
        let found = self.ranges.iter().any(|&(low, high)| low <= c && c <= high);
        found != self.is_negated
    }

    /// Whether it has one of the characters from `low` to `high`.
    fn may_have(&self, low: u32, high: u32) -> bool {
        if self.is_negated {
            let is_covered = |&(first, last): &(u32, u32)| first <= low && high <= last;
            return !self.ranges.iter().any(is_covered);
        }
        let overlaps = |&(first, last): &(u32, u32)| first <= high && low <= last;
        self.ranges.iter().any(overlaps)
    }
}

impl Text {
    /// The beginning of a text of a grammar, from rule `root`.
    pub(super) fn new(grammar: &str, root: &str) -> Result<Self, String> {
        let Rules { rules, root } = parse::rules(grammar, root)?;
        let mut text = Self {
            grammar: Arc::new(Grammar::new(rules)),
            nodes: vec![(0, 0)],
            node_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            kept: 0,
            steps: HashMap::new(),
            masks: HashMap::new(),
            fuel: FUEL,
            at: At {
                state: 0,
                bits: 0,
                missing: 0,
            },
        };
        let begun = text.begin(root, END);
        text.at.state = text.closed(begun).ok_or(TOO_MUCH)?;
        Ok(text)
    }

    /// Whether the text may end here.
    pub(super) fn may_end(&self) -> bool {
        self.at.missing == 0 && self.states[self.at.state as usize].contains(&END)
    }

    /// Whether nothing may follow.
    pub(super) fn is_complete(&self) -> bool {
        self.at.missing == 0 && *self.states[self.at.state as usize] == [END]
    }

    /// The tokens of a vocabulary that the text can go on with.
    pub(super) fn mask(&mut self, tree: &TokTrie) -> Result<Arc<[u32]>, String> {
        if let Some(mask) = self.masks.get(&self.at) {
            return Ok(Arc::clone(mask));
        }
        self.forget_states();
        self.fuel = FUEL;
        let mut mask = tree.alloc_token_set();
        let mut walk = Walk {
            stack: vec![self.at],
            text: self,
        };
        tree.add_bias(&mut walk, &mut mask, &[]);
        if self.fuel == 0 {
            return Err(TOO_MUCH.to_owned());
        }
        if self.masks.len() >= MAX_MASKS {
            self.masks.clear();
        }
        let words = tree.vocab_size().div_ceil(32).min(mask.as_slice().len());
        let mask: Arc<[u32]> = mask.as_slice()[..words].into();
        self.masks.insert(self.at, Arc::clone(&mask));
        Ok(mask)
    }

    /// Goes on with the bytes of a token, if it can.
    pub(super) fn accept(&mut self, bytes: &[u8]) -> bool {
        self.forget_states();
        self.fuel = FUEL;
        let mut at = self.at;
        for &byte in bytes {
            match self.after(at, byte) {
                Some(next) => at = next,
                None => return false,
            }
        }
        self.at = at;
        true
    }

    /// Keeps no state but the one at hand where they have become many: what leads to the others is computed again.
    fn forget_states(&mut self) {
        if self.kept <= MAX_KEPT {
            return;
        }
        let readings = Arc::clone(&self.states[self.at.state as usize]);
        self.states.clear();
        self.state_ids.clear();
        self.steps.clear();
        self.masks.clear();
        self.kept = 0;
        self.at.state = self.state(readings);
    }

    /// Where a byte leads.
    fn after(&mut self, at: At, byte: u8) -> Option<At> {
        let (bits, missing) = match (at.missing, byte) {
            (0, 0x00..=0x7f) => (u32::from(byte), 0),
            (0, 0xc2..=0xdf) => (u32::from(byte & 0x1f), 1),
            (0, 0xe0..=0xef) => (u32::from(byte & 0x0f), 2),
            (0, 0xf0..=0xf4) => (u32::from(byte & 0x07), 3),
            (1.., 0x80..=0xbf) => (at.bits << 6 | u32::from(byte & 0x3f), at.missing - 1),
            _ => return None,
        };
        let next = At {
            state: at.state,
            bits,
            missing,
        };
        if missing > 0 {
            return self.may_go_on(next).then_some(next);
        }
        let c = if at.missing > 0 {
            char::from_u32(bits)?
        } else {
            char::from(byte)
        };
        Some(At {
            state: self.step(at.state, u32::from(c))?,
            bits: 0,
            missing: 0,
        })
    }

    /// Whether a character that begins so can be the next.
    fn may_go_on(&self, at: At) -> bool {
        let shift = 6 * u32::from(at.missing);
        let (low, high) = (at.bits << shift, (at.bits << shift) | ((1 << shift) - 1));
        // Shorter characters have shorter spellings only.
        let low = match at.missing {
            2 if low == 0 => 0x800,
            3 if low == 0 => 0x1_0000,
            _ => low,
        };
        let state = &self.states[at.state as usize];
        state.iter().any(|node| match self.chars(*node) {
            Some(chars) => chars.may_have(low, high),
            None => false,
        })
    }

    /// The class that a reading goes on with; `None` at its end.
    fn chars(&self, node: u32) -> Option<&Chars> {
        let (at, _) = self.nodes[node as usize];
        match self.grammar.element(at) {
            Some(Element::Chars(chars)) => Some(chars),
            _ => None,
        }
    }

    /// The state after a character.
    fn step(&mut self, state: u32, c: u32) -> Option<u32> {
        if let Some(next) = self.steps.get(&(state, c)) {
            return *next;
        }
        let readings = Arc::clone(&self.states[state as usize]);
        let mut next = Vec::new();
        for &node in &*readings {
            if self.chars(node).is_some_and(|chars| chars.has(c)) {
                let (at, parent) = self.nodes[node as usize];
                next.push(self.node(at + 1, parent)?);
            }
        }
        self.fuel = self.fuel.saturating_sub(readings.len());
        let next = match next.is_empty() {
            true => None,
            false => Some(self.closed(next)?),
        };
        if self.steps.len() >= MAX_STEPS {
            self.steps.clear();
        }
        self.steps.insert((state, c), next);
        next
    }

    /// What is left of a reading that goes on at an element; of its rule nothing, at the end of that.
    fn node(&mut self, at: u32, parent: u32) -> Option<u32> {
        if self.grammar.element(at).is_none() {
            return Some(parent);
        }
        if let Some(id) = self.node_ids.get(&(at, parent)) {
            return Some(*id);
        }
        if self.nodes.len() >= MAX_NODES {
            self.fuel = 0;
            return None;
        }
        let id = self.nodes.len() as u32;
        self.nodes.push((at, parent));
        self.node_ids.insert((at, parent), id);
        Some(id)
    }

    /// Readings that begin with each alternative of a rule.
    fn begin(&mut self, rule: usize, parent: u32) -> Vec<u32> {
        let grammar = Arc::clone(&self.grammar);
        let begin = |at: &u32| self.node(*at, parent);
        grammar.rules[rule].iter().filter_map(begin).collect()
    }

    /// The state of these readings, each gone on with until a character is next. `None`, without fuel, where they are too many.
    fn closed(&mut self, mut todo: Vec<u32>) -> Option<u32> {
        let mut seen = HashSet::new();
        let mut readings = Vec::new();
        while let Some(node) = todo.pop() {
            if !seen.insert(node) {
                continue;
            }
            if seen.len() > MAX_READINGS || self.fuel == 0 {
                self.fuel = 0;
                return None;
            }
            self.fuel -= 1;
            let (at, parent) = self.nodes[node as usize];
            match self.grammar.element(at) {
                Some(Element::Rule(rule)) => {
                    let rule = *rule;
                    let after = self.node(at + 1, parent)?;
                    todo.extend(self.begin(rule, after));
                }
                Some(Element::Chars(_)) => readings.push(node),
                None => readings.push(END),
            }
        }
        readings.sort_unstable();
        Some(self.state(readings.into()))
    }

    /// The number of a state.
    fn state(&mut self, readings: Arc<[u32]>) -> u32 {
        if let Some(id) = self.state_ids.get(&readings) {
            return *id;
        }
        let id = self.states.len() as u32;
        self.kept = self.kept.saturating_add(readings.len() + STATE);
        self.states.push(Arc::clone(&readings));
        self.state_ids.insert(readings, id);
        id
    }
}

/// A way down the tree of a vocabulary.
struct Walk<'a> {
    text: &'a mut Text,
    stack: Vec<At>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, n: usize) {
        self.stack.truncate(self.stack.len().saturating_sub(n));
    }

    fn collapse(&mut self) {
        self.stack.drain(..self.stack.len().saturating_sub(1));
    }

    fn trie_finished(&mut self) {
        self.stack.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let Some(&at) = self.stack.last() else {
            return false;
        };
        if self.text.fuel == 0 {
            return false;
        }
        let next = self.text.after(at, byte);
        self.stack.extend(next);
        next.is_some()
    }
}
