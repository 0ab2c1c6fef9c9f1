//! The program that a model runs in, for applications whose own `main` cannot begin with `autoplace::worker_main()`.

use std::process::ExitCode;

fn main() -> ExitCode {
    autoplace::worker_main();
    eprintln!("autoplace-worker is started by applications that use autoplace, with a connection to them");
    ExitCode::from(2)
}
