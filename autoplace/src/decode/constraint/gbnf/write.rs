//! Writes rules over terminals in llguidance's variant of Lark.

use std::fmt::Write;

use super::expr::{Chars, Expr};
use super::pieces::{Piece, Pieces};

/// The grammar in Lark, from `start`.
pub(super) fn lark(pieces: &Pieces<'_>) -> String {
    // If the grammar forces a text, the model still chooses its tokenization, as in llama.cpp.
    let mut lark = "%llguidance {\"no_forcing\": true}\nstart: r0\n".to_owned();
    for (rule, body) in pieces.bodies.iter().enumerate() {
        if let Some(body) = body {
            let _ = writeln!(lark, "r{rule}: {}", alternatives(pieces, body));
        }
    }
    let mut named = Vec::new();
    for terminal in pieces.live() {
        let parts = &pieces.terminals[terminal].parts;
        if parts.is_empty() {
            continue;
        }
        let regex = sequence(parts, &mut named);
        // A terminal must not match the empty text. If a terminal could be empty, each rule that names it makes it
        // optional.
        let _ = match pieces.is_nullable(terminal) {
            true => writeln!(lark, "T{terminal}: ({regex}) & /(?s:.)+/"),
            false => writeln!(lark, "T{terminal}: {regex}"),
        };
    }
    let mut is_written = vec![false; pieces.rules.len()];
    while let Some(rule) = named.pop() {
        if !std::mem::replace(&mut is_written[rule], true) {
            let regex = expr(&pieces.rules[rule].body, &mut named);
            let _ = writeln!(lark, "N{rule}: {regex}");
        }
    }
    lark
}

fn alternatives(pieces: &Pieces<'_>, piece: &Piece) -> String {
    match piece {
        Piece::Choice(alternatives) => {
            alternatives.iter().map(|alternative| written(pieces, alternative)).collect::<Vec<_>>().join(" | ")
        }
        other => written(pieces, other),
    }
}

/// Writes a piece of a rule.
fn written(pieces: &Pieces<'_>, piece: &Piece) -> String {
    match piece {
        Piece::Terminal(terminal) => match pieces.divided(*terminal) {
            Some(piece) => written(pieces, piece),
            None if pieces.terminals[*terminal].parts.is_empty() => "\"\"".to_owned(),
            None if pieces.is_nullable(*terminal) => format!("T{terminal}?"),
            None => format!("T{terminal}"),
        },
        Piece::Token { id, is_negated } => format!("<[{}{id}]>", if *is_negated { "^" } else { "" }),
        Piece::Rule(rule) => format!("r{rule}"),
        Piece::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
        Piece::Sequence(parts) => parts.iter().map(|part| written(pieces, part)).collect::<Vec<_>>().join(" "),
        Piece::Choice(_) => format!("({})", alternatives(pieces, piece)),
        Piece::Repeat { inner, least, most } => {
            format!("({}){}", alternatives(pieces, inner), times(*least, *most))
        }
    }
}

/// Writes a repetition.
fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// Writes the definition of a terminal. Adds the rules that it names to `named`.
fn expr(expression: &Expr, named: &mut Vec<usize>) -> String {
    if !expression.any(&mut |part| matches!(part, Expr::Rule(_))) {
        let regex = regex(expression);
        return if regex.is_empty() { "\"\"".to_owned() } else { format!("/{regex}/") };
    }
    match expression {
        Expr::Rule(rule) => {
            named.push(*rule);
            format!("N{rule}")
        }
        Expr::Sequence(parts) => sequence(parts, named),
        Expr::Choice(alternatives) => {
            let alternatives: Vec<String> = alternatives.iter().map(|alternative| expr(alternative, named)).collect();
            format!("({})", alternatives.join(" | "))
        }
        Expr::Repeat { inner, least, most } => format!("({}){}", expr(inner, named), times(*least, *most)),
        Expr::Chars(_) | Expr::Token { .. } => String::new(),
    }
}

/// Writes a sequence. Consecutive parts without rules become one regular expression.
fn sequence(parts: &[Expr], named: &mut Vec<usize>) -> String {
    let has_rule = |part: &Expr| part.any(&mut |inner| matches!(inner, Expr::Rule(_)));
    let runs = parts.chunk_by(|one, next| !has_rule(one) && !has_rule(next));
    let runs: Vec<String> = runs
        .map(|run| match run {
            [part] => expr(part, named),
            run => expr(&Expr::Sequence(run.to_vec()), named),
        })
        .collect();
    if runs.is_empty() { "\"\"".to_owned() } else { runs.join(" ") }
}

/// Writes an expression that contains no rules, in the syntax of the crate `regex`.
fn regex(expression: &Expr) -> String {
    match expression {
        Expr::Chars(chars) => class(chars),
        Expr::Sequence(parts) => parts.iter().map(regex).collect(),
        Expr::Choice(alternatives) => {
            format!("(?:{})", alternatives.iter().map(regex).collect::<Vec<_>>().join("|"))
        }
        Expr::Repeat { inner, least, most } => format!("(?:{}){}", regex(inner), times(*least, *most)),
        Expr::Rule(_) | Expr::Token { .. } => String::new(),
    }
}

/// Writes a character class.
fn class(chars: &Chars) -> String {
    match chars.ranges() {
        [(low, high)] if low == high => escaped(*low),
        ranges => {
            let ranges = ranges.iter().map(|(low, high)| match low == high {
                true => escaped(*low),
                false => format!("{}-{}", escaped(*low), escaped(*high)),
            });
            format!("[{}]", ranges.collect::<String>())
        }
    }
}

fn escaped(code: u32) -> String {
    match char::from_u32(code) {
        Some(c) if c.is_ascii_alphanumeric() => c.to_string(),
        _ => format!("\\x{{{code:x}}}"),
    }
}
