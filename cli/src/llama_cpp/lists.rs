//! Lists in the values of llama.cpp's flags and in its files, read as common/arg.cpp reads them.

/// The entries of a list, which are separated by commas. As in common/arg.cpp (`parse_csv_row`), an entry in quotation
/// marks may contain commas, and two quotation marks in it stand for one.
pub(super) fn entries(list: &str) -> Vec<String> {
    let (mut entries, mut entry, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut letters = list.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.next_if_eq(&'"').is_none() => is_quoted = false,
            '"' if !is_quoted && entry.is_empty() => is_quoted = true,
            ',' if !is_quoted => entries.push(std::mem::take(&mut entry)),
            letter => entry.push(letter),
        }
    }
    entries.push(entry);
    entries
}

/// The API keys in the value of `--api-key`, or of the variable in its place. Empty entries do not count.
pub(crate) fn api_keys(list: &str) -> impl Iterator<Item = String> {
    entries(list).into_iter().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty())
}

/// The API keys in the text of a file, each with the number of its line. Each line is a key. Empty lines, and lines
/// that begin with `#`, do not count. No header can contain the spaces around a key, or the end of a line from Windows,
/// so they are no part of the key.
pub(crate) fn api_keys_in_file(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::{api_keys, api_keys_in_file};

    #[test]
    fn keys_are_separated_by_commas_and_empty_ones_do_not_count() {
        let of = |list| api_keys(list).collect::<Vec<_>>();
        assert_eq!(of("sk-1"), ["sk-1"]);
        assert_eq!(of(r#"sk-1,, sk-2 ,"a,""b""#), ["sk-1", "sk-2", "a,\"b"]);
        assert!(of("").is_empty() && of(" ,,").is_empty());
    }

    #[test]
    fn each_line_of_a_file_is_a_key_except_for_comments_and_empty_lines() {
        let of = |text| api_keys_in_file(text).collect::<Vec<_>>();
        assert_eq!(of("# for the phone\n\n sk-1 \r\n#sk-0\nsk,2#3"), [(3, "sk-1"), (5, "sk,2#3")]);
        assert!(of("").is_empty() && of("# none\n \r\n").is_empty());
    }
}
