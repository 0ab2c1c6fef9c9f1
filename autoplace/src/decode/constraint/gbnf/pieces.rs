//! A grammar as rules over terminals. A terminal is a unit of llguidance's lexer: the longest possible run of regular
//! parts.

use std::collections::HashMap;

use super::expr::{Chars, Expr, Rule};
use super::rules;

/// A part of a rule.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    Terminal(usize),
    Token { id: u32, is_negated: bool },
    Rule(usize),
    Sequence(Vec<Piece>),
    Choice(Vec<Piece>),
    Repeat { inner: Box<Piece>, least: u32, most: Option<u32> },
}

/// A terminal: a sequence of regular parts.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) parts: Vec<Expr>,
    /// If the terminal was divided, its replacement.
    divided: Option<Piece>,
}

#[derive(Debug)]
pub(super) struct Pieces<'a> {
    pub(super) rules: &'a [Rule],
    /// Which rules are regular, and which can be empty.
    regular: Vec<bool>,
    nullable: Vec<bool>,
    /// The pieces of each rule that is used outside of terminals; `None` for other rules.
    pub(super) bodies: Vec<Option<Piece>>,
    pub(super) terminals: Vec<Terminal>,
    by_parts: HashMap<Vec<Expr>, usize>,
    /// Number of expressions in all terminals.
    size: usize,
}

/// Maximum number of expressions in all terminals. Each division of a terminal adds expressions.
const MAX_SIZE: usize = 600_000;

impl<'a> Pieces<'a> {
    pub(super) fn new(rules: &'a [Rule]) -> Self {
        let (regular, nullable) = (rules::regular(rules), rules::nullable(rules));
        let (bodies, terminals) = (vec![None; rules.len()], Vec::new());
        let mut pieces = Self { rules, regular, nullable, bodies, terminals, by_parts: HashMap::new(), size: 0 };
        let mut to_read = vec![0];
        while let Some(rule) = to_read.pop() {
            if pieces.bodies[rule].is_some() {
                continue;
            }
            let body = pieces.piece(&rules[rule].body);
            to_read.extend(named(&body));
            pieces.bodies[rule] = Some(body);
        }
        pieces
    }

    /// Translates an expression into as few terminals as possible.
    fn piece(&mut self, expr: &Expr) -> Piece {
        if rules::is_regular(expr, &self.regular) {
            return self.terminal(vec![expr.clone()]);
        }
        match expr {
            Expr::Chars(_) => self.terminal(vec![expr.clone()]),
            Expr::Token { id, is_negated } => Piece::Token { id: *id, is_negated: *is_negated },
            Expr::Rule(rule) => Piece::Rule(*rule),
            Expr::Sequence(parts) => self.sequence(&flat(parts)),
            Expr::Choice(alternatives) => self.choice(alternatives),
            Expr::Repeat { inner, least, most } => {
                Piece::Repeat { inner: Box::new(self.piece(inner)), least: *least, most: *most }
            }
        }
    }

    fn sequence(&mut self, parts: &[Expr]) -> Piece {
        let (mut pieces, mut run) = (Vec::new(), Vec::new());
        for part in parts {
            if rules::is_regular(part, &self.regular) {
                run.push(part.clone());
                continue;
            }
            if !run.is_empty() {
                pieces.push(self.terminal(std::mem::take(&mut run)));
            }
            pieces.push(self.piece(part));
        }
        if !run.is_empty() {
            pieces.push(self.terminal(run));
        }
        Piece::Sequence(pieces)
    }

    /// Translates a choice. The regular alternatives become one terminal.
    fn choice(&mut self, alternatives: &[Expr]) -> Piece {
        let is_regular = |expr: &&Expr| rules::is_regular(expr, &self.regular);
        let (regular, others): (Vec<&Expr>, Vec<&Expr>) = alternatives.iter().partition(is_regular);
        let mut pieces: Vec<Piece> = others.into_iter().map(|other| self.piece(other)).collect();
        if !regular.is_empty() {
            let regular = Expr::choice(regular.into_iter().cloned().collect());
            pieces.push(self.terminal(vec![regular]));
        }
        Piece::Choice(pieces)
    }

    /// The terminal of these parts. Equal terminals are shared.
    fn terminal(&mut self, parts: Vec<Expr>) -> Piece {
        let parts = flat(&parts);
        if let Some(known) = self.by_parts.get(&parts) {
            return Piece::Terminal(*known);
        }
        self.size += parts.iter().map(Expr::size).sum::<usize>();
        self.by_parts.insert(parts.clone(), self.terminals.len());
        self.terminals.push(Terminal { parts, divided: None });
        Piece::Terminal(self.terminals.len() - 1)
    }

    /// Whether the terminal can be empty.
    pub(super) fn is_nullable(&self, terminal: usize) -> bool {
        self.terminals[terminal].parts.iter().all(|part| part.is_nullable(&self.nullable))
    }

    /// The replacement of a divided terminal.
    pub(super) fn divided(&self, terminal: usize) -> Option<&Piece> {
        self.terminals[terminal].divided.as_ref()
    }

    /// Divides a terminal before one of its parts. If this is the first part, the terminal is divided after or inside
    /// this part instead.
    pub(super) fn divide(&mut self, terminal: usize, part: usize) -> Result<(), String> {
        if self.terminals[terminal].divided.is_some() {
            return Ok(());
        }
        let parts = self.terminals[terminal].parts.clone();
        let at = part.max(1);
        let divided = if at < parts.len() {
            let (before, after) = parts.split_at(at);
            let (before, after) = (self.terminal(before.to_vec()), self.terminal(after.to_vec()));
            Piece::Sequence(vec![before, after])
        } else {
            self.within(&parts[0])
        };
        self.terminals[terminal].divided = Some(divided);
        match self.size > MAX_SIZE {
            true => Err("its regular parts are too large together".to_owned()),
            false => Ok(()),
        }
    }

    /// Divides a terminal that has only this part.
    fn within(&mut self, part: &Expr) -> Piece {
        match part {
            Expr::Rule(rule) => {
                let body = self.rules[*rule].body.clone();
                self.terminal(vec![body])
            }
            Expr::Choice(alternatives) => {
                Piece::Choice(alternatives.iter().map(|alternative| self.terminal(vec![alternative.clone()])).collect())
            }
            Expr::Repeat { inner, least, most } => {
                let inner = Box::new(self.terminal(vec![Expr::clone(inner)]));
                Piece::Repeat { inner, least: *least, most: *most }
            }
            // A single character has no parts, and sequences are flat.
            _ => self.terminal(vec![part.clone()]),
        }
    }

    /// The terminals that are not divided and that can be reached from `root`, without duplicates.
    pub(super) fn live(&self) -> Vec<usize> {
        let mut live = Vec::new();
        let mut to_see: Vec<&Piece> = self.bodies.iter().flatten().collect();
        let mut seen = vec![false; self.terminals.len()];
        while let Some(piece) = to_see.pop() {
            match piece {
                Piece::Terminal(terminal) if !seen[*terminal] => {
                    seen[*terminal] = true;
                    match self.divided(*terminal) {
                        Some(piece) => to_see.push(piece),
                        None => live.push(*terminal),
                    }
                }
                Piece::Sequence(pieces) | Piece::Choice(pieces) => to_see.extend(pieces),
                Piece::Repeat { inner, .. } => to_see.push(inner),
                _ => {}
            }
        }
        live.sort_unstable();
        live
    }
}

/// Flattens nested sequences.
fn flat(parts: &[Expr]) -> Vec<Expr> {
    let mut flat_parts = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Expr::Sequence(inner) => flat_parts.extend(flat(inner)),
            other => flat_parts.push(other.clone()),
        }
    }
    flat_parts
}

fn named(piece: &Piece) -> Vec<usize> {
    match piece {
        Piece::Rule(rule) => vec![*rule],
        Piece::Terminal(_) | Piece::Token { .. } => Vec::new(),
        Piece::Sequence(pieces) | Piece::Choice(pieces) => pieces.iter().flat_map(named).collect(),
        Piece::Repeat { inner, .. } => named(inner),
    }
}

/// Reading direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// The first or last characters of a terminal, and whether it can be empty.
#[derive(Debug, Clone, Default)]
pub(super) struct Edge {
    pub(super) chars: Chars,
    pub(super) is_nullable: bool,
}

/// For each terminal, the characters that may be next to it: after it in forward direction, before it in backward
/// direction. [`Chars::edge_of_text`] marks the edge of the text, or a token.
pub(super) fn neighbours(pieces: &Pieces<'_>, edges: &[Edge], direction: Direction) -> Vec<Chars> {
    let mut search = Neighbours {
        pieces,
        edges,
        direction,
        rule_edges: vec![Edge::default(); pieces.rules.len()],
        beside_rules: vec![Chars::default(); pieces.rules.len()],
        beside: vec![Chars::default(); pieces.terminals.len()],
    };
    search.find_rule_edges();
    search.beside_rules[0] = Chars::edge_of_text();
    loop {
        let mut is_more = false;
        for rule in 0..pieces.rules.len() {
            if let Some(body) = &pieces.bodies[rule] {
                let outside = search.beside_rules[rule].clone();
                is_more |= search.spread(body, &outside);
            }
        }
        if !is_more {
            return search.beside;
        }
    }
}

struct Neighbours<'a> {
    pieces: &'a Pieces<'a>,
    edges: &'a [Edge],
    direction: Direction,
    rule_edges: Vec<Edge>,
    beside_rules: Vec<Chars>,
    beside: Vec<Chars>,
}

impl Neighbours<'_> {
    fn find_rule_edges(&mut self) {
        loop {
            let mut is_more = false;
            for rule in 0..self.pieces.rules.len() {
                let Some(body) = &self.pieces.bodies[rule] else { continue };
                let edge = self.edge(body);
                let known = &mut self.rule_edges[rule];
                is_more |= known.chars.add(&edge.chars) | (edge.is_nullable && !known.is_nullable);
                known.is_nullable |= edge.is_nullable;
            }
            if !is_more {
                return;
            }
        }
    }

    fn in_order<'p>(&self, pieces: &'p [Piece]) -> Vec<&'p Piece> {
        match self.direction {
            Direction::Forward => pieces.iter().collect(),
            Direction::Backward => pieces.iter().rev().collect(),
        }
    }

    fn edge(&self, piece: &Piece) -> Edge {
        match piece {
            Piece::Terminal(terminal) => match self.pieces.divided(*terminal) {
                Some(piece) => self.edge(piece),
                None => self.edges[*terminal].clone(),
            },
            Piece::Token { .. } => Edge { chars: Chars::edge_of_text(), is_nullable: false },
            Piece::Rule(rule) => self.rule_edges[*rule].clone(),
            Piece::Sequence(pieces) => {
                let mut all = Edge { chars: Chars::default(), is_nullable: true };
                for piece in self.in_order(pieces) {
                    let edge = self.edge(piece);
                    all.chars.add(&edge.chars);
                    if !edge.is_nullable {
                        all.is_nullable = false;
                        break;
                    }
                }
                all
            }
            Piece::Choice(pieces) => {
                let mut all = Edge::default();
                for edge in pieces.iter().map(|piece| self.edge(piece)) {
                    all.chars.add(&edge.chars);
                    all.is_nullable |= edge.is_nullable;
                }
                all
            }
            Piece::Repeat { inner, least, .. } => {
                let mut edge = self.edge(inner);
                edge.is_nullable |= *least == 0;
                edge
            }
        }
    }

    /// Passes the neighbours of a piece to its terminals and rules. Returns whether a rule gained a neighbour.
    fn spread(&mut self, piece: &Piece, outside: &Chars) -> bool {
        match piece {
            Piece::Terminal(terminal) => match self.pieces.divided(*terminal) {
                Some(piece) => self.spread(piece, outside),
                None => {
                    self.beside[*terminal].add(outside);
                    false
                }
            },
            Piece::Token { .. } => false,
            Piece::Rule(rule) => self.beside_rules[*rule].add(outside),
            Piece::Sequence(pieces) => {
                let (mut outside, mut is_more) = (outside.clone(), false);
                for piece in self.in_order(pieces).into_iter().rev() {
                    is_more |= self.spread(piece, &outside);
                    let edge = self.edge(piece);
                    if !edge.is_nullable {
                        outside = Chars::default();
                    }
                    outside.add(&edge.chars);
                }
                is_more
            }
            Piece::Choice(pieces) => pieces.iter().fold(false, |is_more, piece| is_more | self.spread(piece, outside)),
            Piece::Repeat { inner, most, .. } => {
                let mut outside = outside.clone();
                if *most != Some(1) {
                    let edge = self.edge(inner);
                    outside.add(&edge.chars);
                }
                self.spread(inner, &outside)
            }
        }
    }
}
