//! Lines of a system prompt that are different in each request. Because of such lines, the cached prompt could not be
//! used.
//!
//! The cache reuses a prompt only up to the first token that differs. Coding agents begin the system prompt with such
//! lines: Claude Code's first block is `x-anthropic-billing-header: cc_version=..; cc_entrypoint=cli; cch=a5145;`, with
//! a new `cch` each time. In: the texts of the system prompt. Out: the texts without such lines, and the removed lines
//! that the model must see. If the conversation's last message is the user's or a tool's, the translation puts these
//! lines at the end of the conversation.

use std::borrow::Cow;

/// A header that a client sends for its own server. A model does not need it.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";
/// Maximum number of characters of a stamp's name, which is before its colon.
const MAX_NAME_CHARS: usize = 40;
/// Maximum number of characters of a whole stamp.
const MAX_STAMP_CHARS: usize = 200;
/// How many lines at the beginning of a text are examined at most.
const MAX_LINES: usize = 32;

/// Removes the headers of Claude Code from a system prompt.
pub(super) fn leave_out_headers(texts: &mut Vec<Cow<'_, str>>) {
    for text in texts.iter_mut() {
        if let Some(rest) = without_billing_header(text) {
            *text = rest.to_owned().into();
        }
    }
    texts.retain(|text| !text.trim().is_empty());
}

/// Removes the stamps from a system prompt, and returns them.
pub(super) fn take(texts: &mut Vec<Cow<'_, str>>) -> Vec<String> {
    let mut taken = Vec::new();
    let mut is_beginning = true;
    for text in texts.iter_mut() {
        let first = text.lines().take(MAX_LINES);
        let count = first.take_while(|line| is_stamp(line) || line.trim().is_empty()).count();
        let is_whole = text.lines().nth(count).is_none();
        // Stamps are removed only at the beginning of the prompt, and in blocks that contain only stamps.
        if is_beginning || is_whole {
            let stamps = text.lines().take(count).filter(|line| is_stamp(line));
            let stamps: Vec<String> = stamps.map(|line| line.trim().to_owned()).collect();
            if !stamps.is_empty() {
                taken.extend(stamps);
                *text = behind(text, count).to_owned().into();
            }
        }
        is_beginning &= text.trim().is_empty();
    }
    texts.retain(|text| !text.trim().is_empty());
    taken
}

/// The text after Claude Code's header. The header consists of any number of `name=value;`. On the same line, text may
/// follow the last semicolon. `None` if the text does not begin with such a header.
fn without_billing_header(text: &str) -> Option<&str> {
    let mut rest = text.trim_start().strip_prefix(BILLING_HEADER)?;
    loop {
        let pair = rest.trim_start_matches(' ');
        let name = pair.len() - pair.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').len();
        let is_pair = name > 0 && pair[name..].starts_with('=');
        let end = pair.find([';', '\n']).filter(|_| is_pair);
        match end {
            Some(end) if pair[end..].starts_with(';') => rest = &pair[end + 1..],
            Some(end) => return Some(&pair[end + 1..]),
            // The last pair has no semicolon, or there are no pairs.
            None if is_pair => return Some(""),
            None => return Some(rest.trim_start()),
        }
    }
}

/// The text that follows the first `lines` lines.
fn behind(text: &str, lines: usize) -> &str {
    (0..lines).fold(text, |rest, _| rest.split_once('\n').map_or("", |(_, rest)| rest))
}

/// Whether a line has the form `Name: value`, and the value is a date, a time or an identifier: "Current time:
/// 2026-11-28 22:14", "x-request-id: 5f3c2a10-...".
fn is_stamp(line: &str) -> bool {
    let line = line.trim();
    let Some((name, value)) = line.split_once(':') else { return false };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '\'' | '-' | '_' | '\u{2019}');
    if name.is_empty() || name.len() > MAX_NAME_CHARS || line.len() > MAX_STAMP_CHARS || !name.chars().all(is_name) {
        return false;
    }
    let words = || value.split(|c: char| c.is_whitespace() || c == ',' || c == ';');
    let is_header = name.get(..2).is_some_and(|beginning| beginning.eq_ignore_ascii_case("x-"));
    // A whole sentence that contains a date is not a stamp.
    words().filter(|word| !word.is_empty()).count() <= 8 && (is_header || words().any(changes))
}

/// Whether a word is a date (2026-11-28, 28.11.2026, 11/28/2026), a time (22:14), a year, or a hexadecimal identifier.
fn changes(word: &str) -> bool {
    let word = word.trim_matches(|c: char| matches!(c, '(' | ')' | '.' | '"' | '\''));
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let parts: Vec<&str> = word.split(['-', '/', '.', ':', 'T']).collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = parts.iter().take_while(|part| is_number(part)).count();
    let is_date = numbers >= 3 && digits >= 6;
    let is_time = word.contains(':') && numbers >= 2;
    let is_year = word.len() == 4 && digits == 4 && (word.starts_with("20") || word.starts_with("19"));
    let is_seconds = word.len() >= 9 && digits == word.len();
    let is_hex = word.len() >= 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_date || is_time || is_year || is_seconds || is_hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(texts: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut texts: Vec<Cow<'_, str>> = texts.iter().map(|text| Cow::Borrowed(*text)).collect();
        leave_out_headers(&mut texts);
        let taken = take(&mut texts);
        (texts.into_iter().map(Cow::into_owned).collect(), taken)
    }

    #[test]
    fn the_billing_header_is_left_out_wherever_the_text_goes_on() {
        const HEADER: &str = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;";
        for (texts, left) in [
            (vec![HEADER.to_owned(), "You are an agent.".to_owned()], "You are an agent."),
            (vec![format!("{HEADER}You are an agent.")], "You are an agent."),
            (vec![format!("{HEADER}\nYou are an agent.")], "You are an agent."),
            (vec![format!("{} cch=1\nYou are an agent.", BILLING_HEADER)], "You are an agent."),
            (vec![format!("{BILLING_HEADER} other words")], "other words"),
        ] {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (rest, taken) = taken(&texts);
            assert_eq!((rest.concat().trim(), &taken[..]), (left, &[][..]), "{texts:?}");
        }
        assert_eq!(taken(&[HEADER]).0, Vec::<String>::new());
    }

    #[test]
    fn lines_that_change_are_taken_from_the_beginning_and_nothing_else_is() {
        for stamp in [
            "Current time: 2026-11-28T22:14:03Z",
            "Today's date: Saturday, November 28, 2026",
            "Date: 28.11.2026",
            "Time: 22:14",
            "Session: 8f14e45f-ceea-467f-a1ab-3ff2d3a1c7aa",
            "x-request-id: abc",
            "timestamp: 1795904043",
        ] {
            let expected = (vec!["You are an agent.".to_owned()], vec![stamp.to_owned()]);
            assert_eq!(taken(&[stamp, "You are an agent."]), expected);
            assert_eq!(taken(&[&format!("{stamp}\n\nYou are an agent.")]), expected);
            // A stamp inside a text stays in place.
            let within = format!("You are an agent.\n{stamp}\nBe brief.");
            assert_eq!(taken(&[&within]), (vec![within.clone()], vec![]));
        }
        for text in [
            "You are an agent: be brief.",
            "Rules: answer in 3 words.",
            "Note: the release of 2026-11-28 has a fault that you must never mention to any customer of ours.",
            "https://example.com/2026-11-28",
            "You are GPT, current date: 2026-11-28",
            "\u{2019}: a name of one character, which has three bytes",
        ] {
            assert_eq!(taken(&[text]), (vec![text.to_owned()], vec![]), "{text}");
        }
    }
}
