//! Output for people: text without control characters, columns, progress bars, and errors in one line.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use console::{Alignment, measure_text_width, pad_str};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints an answer to stdout. Returns the program's exit code.
pub(crate) fn print(text: &str) -> ExitCode {
    let shown = stdout().is_terminal().then(|| shown(text));
    match writeln!(stdout(), "{}", shown.as_deref().unwrap_or(text)) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => fail(1, "error: ", &unwritten(error)),
        _ => ExitCode::SUCCESS,
    }
}

/// The error if something cannot be printed to stdout. If only the reader has closed the pipe, that is not a failure,
/// and the error stays as it is.
pub(crate) fn unwritten(error: io::Error) -> Box<dyn Error> {
    match error.kind() {
        ErrorKind::BrokenPipe => error.into(),
        _ => format!("cannot write to stdout: {error}").into(),
    }
}

/// Makes a text safe for a terminal. A template or a path may contain control characters, which could move the cursor.
pub(crate) fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), " ")
}

/// A message in one line, without control characters. A model's name may contain control characters.
pub(crate) fn in_one_line(message: &str) -> String {
    let plain = message.replace(char::is_control, " ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints an error to stderr in one line, with `before` at its beginning. Returns the exit code.
pub(crate) fn fail(code: u8, before: &str, error: &dyn Display) -> ExitCode {
    line_to_stderr(format_args!("{before}{}", in_one_line(&error.to_string())));
    ExitCode::from(code)
}

/// Prints a line to stderr. If printing fails, nobody reads stderr, so the error is ignored.
pub(crate) fn line_to_stderr(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// A progress bar, which is shown only on a terminal.
pub(crate) fn bar(steps: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    ProgressStyle::with_template(template).into_iter().fold(bar, ProgressBar::with_style)
}

/// A line with one fact about a device.
pub(crate) fn fact(what: &str, value: impl Display) -> String {
    format!("    {what:<9} {value}")
}

/// Aligns cells in lines: the first columns on the left, and the others on the right.
pub(crate) fn columns(rows: &[Vec<String>], first: usize) -> impl Iterator<Item = String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        // The width is limited, because a name in a file may be very long.
        cells.map(|cell| measure_text_width(cell)).max().unwrap_or(0).min(200)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    rows.iter().map(move |row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column < first {
            true => pad_str(cell, width, Alignment::Left, None),
            false => pad_str(cell, width, Alignment::Right, None),
        });
        cells.collect::<Vec<_>>().join("  ")
    })
}

/// Breaks a line of a help at spaces, so that it fits into this width. Further lines are indented as far as the line's
/// text: behind its indentation, or behind the first column of a table. If the first column leaves little room, the
/// text begins below it.
pub(crate) fn wrapped(line: &str, width: usize) -> String {
    const MIN_TEXT: usize = 40;
    // clap indents text below a flag as far.
    const BELOW: usize = 10;
    if measure_text_width(line) <= width {
        return line.to_owned();
    }
    let after_spaces = |from: usize| line.len() - line[from..].trim_start_matches(' ').len();
    let indentation = after_spaces(0);
    let column = line[indentation..].find("  ").map(|gap| after_spaces(indentation + gap));
    let (head, text) = line.split_at(column.unwrap_or(indentation));
    let mut indent = measure_text_width(head);
    let mut lines = head.to_owned();
    if column.is_some() && indent + MIN_TEXT > width {
        indent = BELOW;
        lines = format!("{}\n{:indent$}", head.trim_end_matches(' '), "");
    }
    let mut used = indent;
    for word in text.split(' ') {
        let length = measure_text_width(word);
        if used > indent && used + 1 + length > width {
            lines += &format!("\n{:indent$}", "");
            used = indent;
        } else if used > indent {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_for_a_terminal_has_no_control_characters() {
        let text = "a\tb\n\u{1b}[2J\u{9b}2J\u{7}\r\u{7f}é";
        assert_eq!(super::shown(text), "a\tb\n [2J 2J   é");
    }

    #[test]
    fn a_long_line_of_a_help_is_broken_at_spaces_and_keeps_its_columns() {
        let wrapped = |line, width| super::wrapped(line, width);
        assert_eq!(wrapped("  run  Answers a prompt", 23), "  run  Answers a prompt");
        let verb = "  \u{1b}[1mrun\u{1b}[0m  Answers a prompt, or begins a chat without one";
        let broken = "  \u{1b}[1mrun\u{1b}[0m  Answers a prompt, or begins a chat\n       without one";
        assert_eq!(wrapped(verb, 48), broken);
        assert_eq!(wrapped("          Keys of the draft model", 30), "          Keys of the draft\n          model");
        // A narrow terminal has no room beside the first column.
        let below = "  completions\n          Prints a script of a shell";
        assert_eq!(wrapped("  completions    Prints a script of a shell", 40), below);
        assert_eq!(wrapped("a-word-that-is-too-long b", 5), "a-word-that-is-too-long\nb");
    }

    #[test]
    fn a_chinese_letter_is_two_columns_wide() {
        let rows: Vec<String> = super::columns(&[vec!["模型".to_owned()], vec!["abcde".to_owned()]], 1).collect();
        assert_eq!(rows, ["模型 ", "abcde"]);
    }
}
