//! Python's rules for texts: white space, ends of lines, upper and lower case, and escapes in literals.

use super::characters;

/// `str.isspace` for one character: Unicode's white space, and four control characters that are separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether a line ends with this character according to `str.splitlines`.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}' | '\u{1d}' | '\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.splitlines`: the lines of a text, with or without the characters that end them.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let found = rest.char_indices().find(|(_, c)| ends_line(*c));
        let (end, length) = match found {
            Some((at, '\r')) if rest[at + 1..].starts_with('\n') => (at, 2),
            Some((at, c)) => (at, c.len_utf8()),
            None => (rest.len(), 0),
        };
        lines.push(&rest[..if keep_ends { end + length } else { end }]);
        rest = &rest[end + length..];
    }
    lines
}

/// `str.split` and `str.rsplit`, called without a separator.
pub(super) fn words(text: &str, most: Option<usize>, from_right: bool) -> Vec<&str> {
    let mut words = Vec::new();
    // After `most` splits, white space in the rest is not removed.
    let mut rest = match from_right {
        true => text.trim_end_matches(is_space),
        false => text.trim_start_matches(is_space),
    };
    while !rest.is_empty() {
        let is_last = most.is_some_and(|most| words.len() == most);
        let place = match (is_last, from_right) {
            (true, _) => None,
            (_, false) => rest.char_indices().find(|(_, c)| is_space(*c)),
            (_, true) => rest.char_indices().rfind(|(_, c)| is_space(*c)),
        };
        let Some((at, c)) = place else {
            words.push(rest);
            break;
        };
        if from_right {
            words.push(&rest[at + c.len_utf8()..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            words.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    if from_right {
        words.reverse();
    }
    words
}

/// Whether `str.title` and `istitle` treat a character as a letter with upper and lower case.
fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || characters::is_title_case(c)
}

/// The form that a letter has at the beginning of a title.
fn title_case(c: char) -> Vec<char> {
    match c {
        // Digraphs have a special form for titles.
        'Ǆ' | 'ǅ' | 'ǆ' => vec!['ǅ'],
        'Ǉ' | 'ǈ' | 'ǉ' => vec!['ǈ'],
        'Ǌ' | 'ǋ' | 'ǌ' => vec!['ǋ'],
        'Ǳ' | 'ǲ' | 'ǳ' => vec!['ǲ'],
        // Greek vowels with an iota below them keep this iota (SpecialCasing.txt).
        '\u{1f80}'..='\u{1faf}' => char::from_u32(c as u32 | 8).into_iter().collect(),
        '\u{1fb3}' | '\u{1fbc}' => vec!['\u{1fbc}'],
        '\u{1fc3}' | '\u{1fcc}' => vec!['\u{1fcc}'],
        '\u{1ff3}' | '\u{1ffc}' => vec!['\u{1ffc}'],
        // Georgian has capital letters, but titles do not begin with them.
        '\u{10d0}'..='\u{10ff}' => vec![c],
        'ŉ' => c.to_uppercase().collect(),
        c => {
            // For example, `ß` becomes `Ss`, and `ﬁ` becomes `Fi`.
            let mut upper = c.to_uppercase();
            let first = upper.next();
            let lower = |c: char| if c == 'Ι' { vec!['\u{345}'] } else { c.to_lowercase().collect() };
            first.into_iter().chain(upper.flat_map(lower)).collect()
        }
    }
}

/// The characters of a text, each with the lower case that it has at its place. A sigma at the end of a word has a
/// special lower case.
fn with_lower_case(text: &str) -> impl Iterator<Item = (char, String)> {
    let lower: Vec<char> = text.to_lowercase().chars().collect();
    let mut from = 0;
    let chars: Vec<char> = text.chars().collect();
    chars.into_iter().map(move |c| {
        let to = from + c.to_lowercase().count();
        let of_it = lower.get(from..to).unwrap_or_default().iter().collect();
        from = to;
        (c, of_it)
    })
}

/// `str.title`: the first letter of each word in its title form, the others in lower case.
pub(super) fn title(text: &str) -> String {
    let mut out = String::new();
    let mut follows = false;
    for (c, lower) in with_lower_case(text) {
        match follows {
            false => out.extend(title_case(c)),
            true => out.push_str(&lower),
        }
        follows = is_cased(c);
    }
    out
}

/// jinja2's filter `title` (`do_title`). A word begins after a space, a hyphen or an opening bracket.
pub(super) fn title_words(text: &str) -> String {
    let separates = |c: char| is_space(c) || "-({[<".contains(c);
    let mut out = String::new();
    for word in text.split_inclusive(separates) {
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&chars.as_str().to_lowercase());
    }
    out
}

/// `str.capitalize`: the first letter in its title form, the others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = with_lower_case(text);
    let first = chars.next().map(|(c, _)| title_case(c)).unwrap_or_default();
    first.into_iter().collect::<String>() + &chars.map(|(_, lower)| lower).collect::<String>()
}

/// `str.istitle`.
pub(super) fn is_title(text: &str) -> bool {
    let mut follows = false;
    let mut has_letter = false;
    for c in text.chars() {
        let is_upper = c.is_uppercase() || title_case(c) == [c] && is_cased(c) && !c.is_lowercase();
        if is_cased(c) {
            if is_upper == follows {
                return false;
            }
            has_letter = true;
        }
        follows = is_cased(c);
    }
    has_letter
}

/// `str.swapcase`.
pub(super) fn swap_case(text: &str) -> String {
    let swapped = with_lower_case(text).map(|(c, lower)| match c {
        c if c.is_uppercase() => lower,
        c if c.is_lowercase() => c.to_uppercase().collect(),
        c => c.to_string(),
    });
    swapped.collect()
}

/// `str.casefold`: the text is converted to upper case and then to lower case. Some letters have another rule in
/// CaseFolding.txt.
pub(super) fn case_fold(text: &str) -> String {
    let folded = text.chars().map(|c| match c {
        'ẞ' => "ss".to_owned(),
        'ı' => "ı".to_owned(),
        // Cherokee letters are folded to capitals, because at first Unicode had only the capitals.
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => c.to_uppercase().collect(),
        // Some capitals are not the upper case of any small letter.
        c if c.is_uppercase() && c.to_uppercase().eq([c]) => c.to_lowercase().collect(),
        c => c.to_uppercase().flat_map(char::to_lowercase).collect(),
    });
    folded.collect()
}

/// `str.expandtabs`.
pub(super) fn expand_tabs(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if width == 0 => {}
            '\t' => {
                let spaces = width - column % width;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

/// The text that a literal in quotes stands for. jinja2 decodes it with Python's `unicode-escape`.
pub(super) fn unescaped(literal: &str) -> Result<String, &'static str> {
    let inner = literal.get(1..literal.len() - 1).unwrap_or_default();
    let mut out = String::new();
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let Some(c) = escape.chars().next() else { return Err("a backslash at the end of a string") };
        let mut length = c.len_utf8();
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                length = escape.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                out.extend(u32::from_str_radix(&escape[..length], 8).ok().and_then(char::from_u32));
            }
            'x' | 'u' | 'U' => {
                let digits = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code = hexadecimal(&escape[1..], digits).ok_or("a truncated escape in a string")?;
                length += digits;
                // Two surrogates together are one character.
                let low = escape[length..].strip_prefix("\\u").and_then(|low| hexadecimal(low, 4));
                let pair = low.filter(|low| (0xd800..0xdc00).contains(&code) && (0xdc00..0xe000).contains(low));
                if pair.is_some() {
                    length += 6;
                }
                let code = pair.map_or(code, |low| 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00));
                out.push(char::from_u32(code).ok_or("an escape in a string that is not a character")?);
            }
            'N' => return Err("`\\N{..}` in a string: names of characters are not known here"),
            c => out.extend(['\\', c]),
        }
        rest = &escape[length..];
    }
    out.push_str(rest);
    Ok(out)
}

fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let digits = text.get(..digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The literal that stands for a text in minijinja.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
