//! Runs tests that a command selects by a filter. libtest succeeds if its filter selects nothing, so after a rename the
//! command would succeed without doing anything.
//!
//! In: a `cargo test` command. Out: the output of its tests, and an error if a test program ran no test.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace::{Running, line, outcome};

/// Runs a command whose filter must select at least one test of each test program.
pub(crate) fn run_tests(command: &mut Command) -> Result<()> {
    run_into(command, &mut std::io::stdout())
}

fn run_into(command: &mut Command, to: &mut impl Write) -> Result<()> {
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = Running(child.with_context(|| format!("cannot start `{}`", line(command)))?);
    let stdout = child.0.stdout.take().context("piped")?;
    let numbers = pass_on(stdout, to)?;
    outcome(command, child.0.wait()?)?;
    let empty = numbers.iter().filter(|number| **number == 0).count();
    ensure!(
        !numbers.is_empty() && empty == 0,
        "`{}`: {empty} of {} test programs ran no test, so a test or its module has another name than the filter",
        line(command),
        numbers.len()
    );
    Ok(())
}

/// Copies the output. Returns the numbers of tests that the test programs have announced.
fn pass_on(mut from: impl Read, to: &mut impl Write) -> Result<Vec<usize>> {
    let (mut numbers, mut line) = (Vec::new(), Vec::new());
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(numbers);
        }
        to.write_all(&buffer[..read])?;
        // A test may print for hours, and parts of lines show that it continues.
        to.flush()?;
        for byte in &buffer[..read] {
            if *byte == b'\n' {
                numbers.extend(announced(&line));
                line.clear();
            } else {
                line.push(*byte);
            }
        }
    }
}

/// The number in libtest's first line: `running 1 test`, `running 12 tests`.
fn announced(line: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let number = text.strip_prefix("running ")?.strip_suffix(if text.ends_with('s') { " tests" } else { " test" })?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs this test program with these arguments.
    fn ran(arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        run_into(command.args(arguments), &mut Vec::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_filter_that_selects_no_test_is_an_error() {
        ran(&["--exact", "selected::tests::a_line_of_libtest_is_recognised"]).unwrap();
        let error = ran(&["--exact", "selected::tests::renamed"]).unwrap_err();
        assert!(error.contains("1 of 1 test programs ran no test"), "{error}");
        assert!(error.contains("selected::tests::renamed"), "{error}");
    }

    #[test]
    fn a_program_without_tests_is_an_error() {
        let error = ran(&["--help"]).unwrap_err();
        assert!(error.contains("0 of 0 test programs"), "{error}");
    }

    #[test]
    fn a_failed_command_is_an_error() {
        let error = ran(&["--no-such-option"]).unwrap_err();
        assert!(error.contains("failed ("), "{error}");
    }

    #[test]
    fn each_test_program_is_counted_and_its_output_passed_on() {
        let printed = "\nrunning 2 tests\ntest a ... running 9 tests\nok\n\nrunning 0 tests\nrunning 1 test\r\n";
        let mut copied = Vec::new();
        assert_eq!(pass_on(printed.as_bytes(), &mut copied).unwrap(), [2, 0, 1]);
        assert_eq!(copied, printed.as_bytes());
    }

    #[test]
    fn a_line_of_libtest_is_recognised() {
        for (line, number) in [
            ("running 1 test", Some(1)),
            ("running 12 tests", Some(12)),
            ("running tests", None),
            ("running 2 tests of a table", None),
            ("test running 2 tests", None),
        ] {
            assert_eq!(announced(line.as_bytes()), number, "{line}");
        }
    }
}
