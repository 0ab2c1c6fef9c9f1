//! Analyses the rules of a grammar before they are rewritten. Finds out which rules can be empty, which have no finite
//! text, which are left-recursive, and which are regular.

use super::expr::{Expr, Rule};
use super::place::place;
use crate::decode::constraint::unenforced::Unenforced;

/// Which rules can be empty.
pub(super) fn nullable(rules: &[Rule]) -> Vec<bool> {
    let mut nullable = vec![false; rules.len()];
    grow(&mut nullable, |nullable, rule| rules[rule].body.is_nullable(nullable));
    nullable
}

/// Sets flags until a fixed point is reached.
fn grow(flags: &mut [bool], is_so: impl Fn(&[bool], usize) -> bool) {
    loop {
        let mut is_done = true;
        for index in 0..flags.len() {
            if !flags[index] && is_so(flags, index) {
                flags[index] = true;
                is_done = false;
            }
        }
        if is_done {
            return;
        }
    }
}

/// Refuses left recursion, as llama.cpp does.
pub(super) fn refuse_left_recursion(text: &str, rules: &[Rule]) -> Result<(), Unenforced> {
    let nullable = nullable(rules);
    let begins: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut named = Vec::new();
            leftmost(&rule.body, &nullable, &mut named);
            named.sort_unstable();
            named.dedup();
            named
        })
        .collect();
    // A rule is done once all rules with which it can begin are done. The rules that remain are left-recursive, or lead
    // to a left-recursive rule.
    let mut is_done = vec![false; rules.len()];
    grow(&mut is_done, |is_done, rule| begins[rule].iter().all(|other| is_done[*other]));
    let Some(mut rule) = is_done.iter().position(|done| !done) else { return Ok(()) };
    let mut seen = vec![false; rules.len()];
    while !seen[rule] {
        seen[rule] = true;
        rule = begins[rule].iter().copied().find(|other| !is_done[*other]).unwrap_or(rule);
    }
    let Rule { name, at, .. } = &rules[rule];
    let reason = format!("the rule `{name}` can begin with itself (left recursion): write `{name} ::= x y*` for it");
    Err(place(text, *at).refused(reason))
}

/// Collects the rules with which an expression can begin.
fn leftmost(expr: &Expr, nullable: &[bool], named: &mut Vec<usize>) {
    match expr {
        Expr::Rule(rule) => named.push(*rule),
        Expr::Sequence(parts) => {
            for part in parts {
                leftmost(part, nullable, named);
                if !part.is_nullable(nullable) {
                    break;
                }
            }
        }
        _ => expr.parts().iter().for_each(|part| leftmost(part, nullable, named)),
    }
}

/// Removes empty character classes and alternatives without a finite text, and simplifies expressions that can only be
/// empty.
pub(super) fn prune(text: &str, rules: &mut [Rule]) -> Result<(), Unenforced> {
    let mut ends = vec![false; rules.len()];
    grow(&mut ends, |ends, rule| has_end(&rules[rule].body, ends));
    if !ends[0] {
        return Err(place(text, rules[0].at).refused("no text of the rule `root` ever ends"));
    }
    for rule in rules.iter_mut() {
        // After this, the expression names only rules that have a finite text.
        rule.body = pruned(&rule.body, &ends).unwrap_or_else(Expr::empty);
    }
    let mut has_text = vec![false; rules.len()];
    let is_text = |expr: &Expr, has_text: &[bool]| {
        expr.any(&mut |part| match part {
            Expr::Chars(_) | Expr::Token { .. } => true,
            Expr::Rule(rule) => has_text[*rule],
            _ => false,
        })
    };
    grow(&mut has_text, |has_text, rule| is_text(&rules[rule].body, has_text));
    for rule in rules {
        rule.body.replace(&|part| (!is_text(part, &has_text)).then(Expr::empty));
    }
    Ok(())
}

/// Whether the expression has a finite text. `ends` contains for each rule whether it has a finite text.
fn has_end(expr: &Expr, ends: &[bool]) -> bool {
    match expr {
        Expr::Chars(chars) => !chars.is_empty(),
        Expr::Token { .. } => true,
        Expr::Rule(rule) => ends[*rule],
        Expr::Sequence(parts) => parts.iter().all(|part| has_end(part, ends)),
        Expr::Choice(alternatives) => alternatives.iter().any(|alternative| has_end(alternative, ends)),
        Expr::Repeat { inner, least, .. } => *least == 0 || has_end(inner, ends),
    }
}

/// Removes alternatives without a finite text. Returns `None` when nothing remains.
fn pruned(expr: &Expr, ends: &[bool]) -> Option<Expr> {
    match expr {
        Expr::Chars(chars) => (!chars.is_empty()).then(|| expr.clone()),
        Expr::Token { .. } => Some(expr.clone()),
        Expr::Rule(rule) => ends[*rule].then(|| expr.clone()),
        Expr::Sequence(parts) => {
            let parts: Option<Vec<Expr>> = parts.iter().map(|part| pruned(part, ends)).collect();
            parts.map(Expr::Sequence)
        }
        Expr::Choice(alternatives) => {
            let left: Vec<Expr> = alternatives.iter().filter_map(|alternative| pruned(alternative, ends)).collect();
            (!left.is_empty()).then(|| Expr::choice(left))
        }
        Expr::Repeat { inner, least, most } => match pruned(inner, ends) {
            Some(inner) => Some(Expr::repeat(inner, *least, *most)),
            None => (*least == 0).then(Expr::empty),
        },
    }
}

/// Rewrites `r ::= a r | b` as the equivalent `a* b`, which may be regular.
pub(super) fn unroll_tails(rules: &mut [Rule]) {
    for (number, rule) in rules.iter_mut().enumerate() {
        if rule.body.names(number)
            && let Some(tail) = Tail::new(&rule.body, number)
        {
            let again = Expr::repeat(Expr::choice(tail.again), 0, None);
            rule.body = Expr::Sequence(vec![again, Expr::choice(tail.last)]);
        }
    }
}

/// An expression in the form `again r | last`: the parts before a reference to the rule at the end, and the
/// alternatives without such a reference.
#[derive(Default)]
struct Tail {
    again: Vec<Expr>,
    last: Vec<Expr>,
}

impl Tail {
    /// `None` if the rule is named anywhere but at the end.
    fn new(expr: &Expr, rule: usize) -> Option<Self> {
        if !expr.names(rule) {
            return Some(Self { again: Vec::new(), last: vec![expr.clone()] });
        }
        match expr {
            Expr::Rule(_) => Some(Self { again: vec![Expr::empty()], last: Vec::new() }),
            Expr::Sequence(parts) => {
                let (end, before) = parts.split_last()?;
                if before.iter().any(|part| part.names(rule)) {
                    return None;
                }
                let after = |ends: Vec<Expr>| match ends.is_empty() {
                    true => Vec::new(),
                    false => vec![Expr::Sequence([before, &[Expr::choice(ends)]].concat())],
                };
                let Self { again, last } = Self::new(end, rule)?;
                Some(Self { again: after(again), last: after(last) })
            }
            Expr::Choice(alternatives) => {
                let mut all = Self::default();
                for alternative in alternatives {
                    let Self { again, last } = Self::new(alternative, rule)?;
                    all.again.extend(again);
                    all.last.extend(last);
                }
                Some(all)
            }
            Expr::Repeat { inner, least, most: Some(1) } => {
                let mut all = Self::new(inner, rule)?;
                if *least == 0 {
                    all.last.push(Expr::empty());
                }
                Some(all)
            }
            _ => None,
        }
    }
}

/// Which rules are regular: they contain no token and no recursion.
pub(super) fn regular(rules: &[Rule]) -> Vec<bool> {
    let mut regular = vec![false; rules.len()];
    grow(&mut regular, |regular, rule| is_regular(&rules[rule].body, regular));
    regular
}

/// Whether an expression is regular. `regular` contains for each rule whether it is regular.
pub(super) fn is_regular(expr: &Expr, regular: &[bool]) -> bool {
    !expr.any(&mut |part| match part {
        Expr::Token { .. } => true,
        Expr::Rule(rule) => !regular[*rule],
        _ => false,
    })
}
