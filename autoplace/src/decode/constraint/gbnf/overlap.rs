//! Divides terminals so that llguidance's lexer reads a text as a parser of characters would.
//!
//! The lexer takes the longest match of a terminal. A text has another reading if a terminal may end before a character
//! with which the grammar may continue, and if this terminal, or another one that could begin at the same place, may
//! contain that character too. The terminal that may contain the character is divided before it. A terminal of a single
//! character need not be divided, because there is only one way to read it.

use std::collections::HashSet;

use super::expr::{Chars, Expr};
use super::pieces::{Direction, Edge, Pieces, neighbours};

/// Maximum number of characters in all terminals, and of transitions between them.
const MAX_WAYS: usize = 300_000;
/// The maximum number of pairs of characters that are compared in all rounds, and of pairs of positions per round.
const MAX_COMPARED: usize = 2_000_000;
const MAX_PAIRS: usize = 500_000;
/// Maximum number of rounds.
const MAX_ROUNDS: usize = 300;
/// Maximum number of repetitions that are modelled one by one. If there are more, the repetition counts as unlimited.
/// The only effect is that some terminals are divided needlessly.
const MAX_COPIES: usize = 8;
/// Maximum number of characters of all copies together, if a repetition is to be modelled copy by copy.
const MAX_COPIED: usize = 64;

/// Divides terminals until the longest match is the only reading.
pub(super) fn resolve(pieces: &mut Pieces<'_>) -> Result<(), String> {
    let mut left = MAX_COMPARED;
    for _ in 0..MAX_ROUNDS {
        let to_divide = overlapping(pieces, &mut left)?;
        if to_divide.is_empty() {
            return Ok(());
        }
        for (terminal, part) in to_divide {
            pieces.divide(terminal, part)?;
        }
    }
    Err(TOO_MANY_WAYS.to_owned())
}

const TOO_MANY_WAYS: &str = "its regular parts overlap in too many ways";

/// A character of a terminal and its successors: a state of Glushkov's automaton.
struct Place {
    chars: Chars,
    terminal: usize,
    /// Index of the part within the terminal.
    part: usize,
    next: Vec<usize>,
    is_last: bool,
}

#[derive(Default)]
struct Automaton {
    places: Vec<Place>,
    ways: usize,
}

/// The first and last positions of an expression.
#[derive(Default, Clone)]
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    fn count(&mut self, ways: usize) -> Result<(), String> {
        self.ways += ways;
        match self.ways > MAX_WAYS {
            true => Err("its regular parts are too large together".to_owned()),
            false => Ok(()),
        }
    }

    fn terminal(&mut self, pieces: &Pieces<'_>, terminal: usize) -> Result<Ends, String> {
        let mut ends = Ends { is_nullable: true, ..Ends::default() };
        for (part, expr) in pieces.terminals[terminal].parts.iter().enumerate() {
            let next = self.expr(pieces, expr, (terminal, part))?;
            ends = self.then(ends, next)?;
        }
        for last in &ends.last {
            self.places[*last].is_last = true;
        }
        Ok(ends)
    }

    fn expr(&mut self, pieces: &Pieces<'_>, expr: &Expr, at: (usize, usize)) -> Result<Ends, String> {
        match expr {
            Expr::Chars(chars) => {
                self.count(1 + chars.ranges().len())?;
                let place = self.places.len();
                let (terminal, part) = at;
                let chars = chars.clone();
                self.places.push(Place { chars, terminal, part, next: Vec::new(), is_last: false });
                Ok(Ends { first: vec![place], last: vec![place], is_nullable: false })
            }
            // A terminal contains no token.
            Expr::Token { .. } => Ok(Ends::default()),
            Expr::Rule(rule) => self.expr(pieces, &pieces.rules[*rule].body, at),
            Expr::Sequence(parts) => {
                let mut ends = Ends { is_nullable: true, ..Ends::default() };
                for part in parts {
                    let next = self.expr(pieces, part, at)?;
                    ends = self.then(ends, next)?;
                }
                Ok(ends)
            }
            Expr::Choice(alternatives) => {
                let mut ends = Ends::default();
                for alternative in alternatives {
                    let next = self.expr(pieces, alternative, at)?;
                    ends.first.extend(next.first);
                    ends.last.extend(next.last);
                    ends.is_nullable |= next.is_nullable;
                }
                Ok(ends)
            }
            Expr::Repeat { inner, least, most } => self.repeat(pieces, (inner, *least, *most), at),
        }
    }

    fn repeat(
        &mut self,
        pieces: &Pieces<'_>,
        (inner, least, most): (&Expr, u32, Option<u32>),
        at: (usize, usize),
    ) -> Result<Ends, String> {
        let before = self.places.len();
        let mut ends = self.expr(pieces, inner, at)?;
        let size = self.places.len() - before;
        let most_copies = most.unwrap_or(least.max(1)) as usize;
        if most_copies <= MAX_COPIES && size * most_copies <= MAX_COPIED {
            ends.is_nullable |= least == 0;
            let mut all = ends;
            for copy in 1..most_copies {
                let mut next = self.expr(pieces, inner, at)?;
                next.is_nullable |= copy >= least as usize;
                let is_end = most.is_none() && copy + 1 == most_copies;
                if is_end {
                    self.again(&next)?;
                }
                all = self.then(all, next)?;
            }
            if most.is_none() && most_copies == 1 {
                self.again(&all)?;
            }
            return Ok(all);
        }
        self.again(&ends)?;
        ends.is_nullable |= least == 0;
        Ok(ends)
    }

    /// Allows an expression to be repeated: its ends may be followed by its beginnings.
    fn again(&mut self, ends: &Ends) -> Result<(), String> {
        self.join(&ends.last, &ends.first)
    }

    fn join(&mut self, last: &[usize], first: &[usize]) -> Result<(), String> {
        self.count(last.len() * first.len())?;
        for place in last {
            self.places[*place].next.extend_from_slice(first);
        }
        Ok(())
    }

    fn then(&mut self, before: Ends, after: Ends) -> Result<Ends, String> {
        self.join(&before.last, &after.first)?;
        let (mut first, mut last) = (before.first, after.last);
        if before.is_nullable {
            first.extend_from_slice(&after.first);
        }
        if after.is_nullable {
            last.extend_from_slice(&before.last);
        }
        self.count(first.len() + last.len())?;
        Ok(Ends { first, last, is_nullable: before.is_nullable && after.is_nullable })
    }

    /// The characters at these positions.
    fn edge(&self, places: &[usize], is_nullable: bool) -> Edge {
        let mut chars = Chars::default();
        for place in places {
            chars.add(&self.places[*place].chars);
        }
        Edge { chars, is_nullable }
    }
}

/// Pairs of positions that the same text can reach: the first in a terminal that may end there, the second in a
/// terminal that may continue there.
struct Pairs<'a> {
    places: &'a [Place],
    /// Remaining comparisons.
    left: &'a mut usize,
    seen: HashSet<(u32, u32)>,
    to_see: Vec<(u32, u32)>,
}

impl Pairs<'_> {
    /// Adds a pair of positions whose characters overlap.
    fn add(&mut self, one: usize, other: usize) -> Result<(), String> {
        *self.left = self.left.checked_sub(1).ok_or(TOO_MANY_WAYS)?;
        // The number of positions is below MAX_WAYS.
        let pair = (one as u32, other as u32);
        if self.places[one].chars.overlaps(&self.places[other].chars) && self.seen.insert(pair) {
            if self.seen.len() > MAX_PAIRS {
                return Err(TOO_MANY_WAYS.to_owned());
            }
            self.to_see.push(pair);
        }
        Ok(())
    }
}

/// The terminals that must be divided, each with the index of the part before which it is divided.
fn overlapping(pieces: &Pieces<'_>, left: &mut usize) -> Result<Vec<(usize, usize)>, String> {
    let live = pieces.live();
    let mut automaton = Automaton::default();
    let mut firsts = vec![Vec::new(); pieces.terminals.len()];
    let (mut begins, mut ends) = (vec![Edge::default(); firsts.len()], vec![Edge::default(); firsts.len()]);
    for terminal in &live {
        let of = automaton.terminal(pieces, *terminal)?;
        begins[*terminal] = automaton.edge(&of.first, of.is_nullable);
        ends[*terminal] = automaton.edge(&of.last, of.is_nullable);
        firsts[*terminal] = of.first;
    }
    let after = neighbours(pieces, &begins, Direction::Forward);
    let before = neighbours(pieces, &ends, Direction::Backward);
    let places = &automaton.places;
    let mut pairs = Pairs { places, left, seen: HashSet::new(), to_see: Vec::new() };
    for short in &live {
        for long in live.iter().filter(|long| before[*short].overlaps(&before[**long])) {
            for one in &firsts[*short] {
                for other in &firsts[*long] {
                    pairs.add(*one, *other)?;
                }
            }
        }
    }
    let mut to_divide = Vec::new();
    while let Some((one, other)) = pairs.to_see.pop() {
        let (short, long) = (&places[one as usize], &places[other as usize]);
        for next in &long.next {
            if short.is_last && after[short.terminal].overlaps(&places[*next].chars) {
                to_divide.push((long.terminal, places[*next].part));
            }
            for next_of_short in &short.next {
                pairs.add(*next_of_short, *next)?;
            }
        }
        // Each terminal is divided once per round, so the list may be cut off.
        if to_divide.len() > MAX_PAIRS {
            break;
        }
    }
    // Keeps only the last point of each terminal, because a division there may make the other divisions unnecessary.
    to_divide.sort_unstable_by_key(|(terminal, part)| (*terminal, std::cmp::Reverse(*part)));
    to_divide.dedup_by_key(|(terminal, _)| *terminal);
    Ok(to_divide)
}
