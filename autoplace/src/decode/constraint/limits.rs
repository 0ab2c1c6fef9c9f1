//! The limits that a constraint must keep, and the guard under which it is compiled: the text has a bounded size,
//! llguidance does a bounded amount of work, the stack suffices for deep recursion, and a panic becomes an error.

use std::thread;

use llguidance::api::ParserLimits;

/// Maximum bytes of a regular expression, of a grammar, and of all choices together.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// Weight of an optional or repeated part in a regular expression.
const REPETITION: usize = 96;
/// Bytes that the parser of one text may keep, in the expressions and items that its steps create.
pub(super) const MAX_KEPT: u64 = 256 << 20;

/// Address space for the recursion of a compilation. Only the part that is used takes memory.
const STACK: usize = 256 << 20;

/// Limits on the compilation of a constraint and on each step. These are llguidance's defaults, which its authors
/// measured on large schemas, except where docs/constrained-output.md promises other limits.
pub(super) fn of_parser(is_of_schema: bool) -> ParserLimits {
    // A step takes time that is quadratic in the items of a row, or cubic if the grammar is ambiguous. An object of
    // 1,000 optional properties has 4,000 items at its beginning.
    let (max_items_in_row, step_max_items) = match is_of_schema {
        true => (5_000, 25_000),
        false => (2_000, 10_000),
    };
    ParserLimits {
        max_items_in_row,
        step_max_items,
        // Each state takes 1 to 2 KiB.
        max_lexer_states: 50_000,
        // llguidance panics above 65,525.
        max_grammar_size: 60_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Fails if a text has more bytes than [`MAX_BYTES`].
pub(super) fn sized(text: &str) -> Result<(), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is larger than {} KiB", MAX_BYTES >> 10));
    }
    Ok(())
}

/// Fails if the compiled grammar would weigh too many bytes.
pub(super) fn check_weight(weight: usize) -> Result<(), String> {
    if weight > MAX_BYTES {
        let (kib, parts) = (MAX_BYTES >> 10, MAX_BYTES / REPETITION);
        return Err(format!("it is larger than {kib} KiB, or has more than {parts} repetitions, groups and names"));
    }
    Ok(())
}

/// The weight of a regular expression.
pub(super) fn regex_weight(regex: &str) -> usize {
    let mut is_escaped = false;
    let mut parts = 0;
    for c in regex.chars() {
        // A Unicode class has hundreds of ranges.
        parts += usize::from(match is_escaped {
            true => matches!(c, 'p' | 'P' | 'w' | 'W' | 'd' | 'D' | 's' | 'S'),
            false => matches!(c, '?' | '*' | '{' | '('),
        });
        is_escaped = c == '\\' && !is_escaped;
    }
    regex.len() + REPETITION * parts
}

/// Runs `work` on a large stack and turns a panic into an error.
pub(super) fn on_large_stack<T: Send, E: Send + From<String>>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("autoplace-constraint".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| E::from(format!("there is no thread to compile it: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(E::from("llguidance panicked".to_owned())))
    })
}
