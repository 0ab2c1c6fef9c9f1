//! Tests that see or change what the whole process has - registered devices, counted allocations, open files - run in a
//! process of their own, so that all others run side by side.

#![allow(dead_code, reason = "each test file uses its part")]

use std::env;
use std::process::Command;
use std::thread;

/// Set in such a process.
const CHILD: &str = "AUTOPLACE_TEST_PROCESS";

/// The first line of such a test.
macro_rules! own_process {
    () => {
        if crate::own_process::ran() {
            return;
        }
    };
}

/// Whether the test that calls this has run now, in another process. It fails here if it failed there.
pub(crate) fn ran() -> bool {
    ran_with(&[])
}

/// The same, with these variables set there.
pub(crate) fn ran_with(environment: &[(&str, &str)]) -> bool {
    ran_in_one_of(1, environment)
}

/// The same, in another process where one was ended by a signal: not by the test, but by what it tests with.
pub(crate) fn ran_in_one_of(attempts: u32, environment: &[(&str, &str)]) -> bool {
    if env::var_os(CHILD).is_some() {
        return false;
    }
    let thread = thread::current();
    let name = thread.name().expect("tests run in threads of their names");
    if name == "main" && environment.is_empty() {
        // `--test-threads=1`: no other test runs meanwhile.
        return false;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture"]).env(CHILD, name);
    command.envs(environment.iter().copied());
    let mut output = command.output().unwrap();
    for _ in 1..attempts {
        if output.status.code().is_some() {
            break;
        }
        println!("{name}: {}, and again", output.status);
        output = command.output().unwrap();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    let passed = said.contains("test result: ok. 1 passed");
    assert!(output.status.success() && passed, "{name} failed in a process of its own ({})", output.status);
    true
}
