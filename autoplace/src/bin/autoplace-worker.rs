//! The worker program, for applications whose own `main` cannot begin with `autoplace::worker_main()`.

use std::process::ExitCode;

fn main() -> ExitCode {
    autoplace::worker_main();
    eprintln!("autoplace-worker is started by applications that use autoplace, and needs a connection to one");
    ExitCode::from(2)
}
