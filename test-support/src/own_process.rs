//! Runs a test in its own process if it reads or changes the state of the whole process: registered devices, counted
//! allocations, open files. All other tests run at the same time in one process.

use std::env;
use std::process::Command;
use std::thread;

/// The environment variable that is set in the test's own process.
const CHILD: &str = "AUTOPLACE_TEST_PROCESS";

/// The first statement of a test that needs its own process.
#[macro_export]
macro_rules! own_process {
    () => {
        if $crate::own_process::ran() {
            return;
        }
    };
}

/// Runs the calling test in another process, unless this process is already the other one. Returns whether the test ran
/// in another process, and panics if it failed there.
pub fn ran() -> bool {
    ran_with(&[])
}

/// As [`ran`], with these variables set in the other process.
pub fn ran_with(environment: &[(&str, &str)]) -> bool {
    ran_in_one_of(1, environment)
}

/// As [`ran_with`], but tries again if a signal ended the process. This is for tests of tools that may themselves end
/// with a signal.
pub fn ran_in_one_of(attempts: u32, environment: &[(&str, &str)]) -> bool {
    if env::var_os(CHILD).is_some() {
        return false;
    }
    let thread = thread::current();
    let name = thread.name().expect("tests run in threads of their names");
    if name == "main" && environment.is_empty() {
        // With `--test-threads=1` no other test runs at the same time.
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
