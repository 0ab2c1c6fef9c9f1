//! The verb `runtime`: installs, lists and removes runtimes. Programs that were built with `prebuilt-runtime` open the
//! libraries of a runtime.

use std::error::Error;
use std::path::Path;
use std::process::exit;
use std::sync::atomic::Ordering::Relaxed;

use autoplace::llama_sys::{BUILD, TARGET};
use autoplace::machine::Bytes;
use autoplace_runtime::{Choice, Set, Source, install, installed, remove, user_folder};
use clap::Subcommand;

use crate::stop::Stop;
use crate::terminal::bar;

/// Operations on runtimes.
#[derive(Debug, Subcommand)]
pub(crate) enum RuntimeVerb {
    /// Installs a runtime into the user's folder: complete and checked against its manifest, or not at all
    Install {
        /// An archive (.tar.gz), a folder, or the address of an archive
        #[arg(value_name = "FILE|FOLDER|URL")]
        source: String,
        /// The archive's SHA-256 in 64 hexadecimal digits; required for an address
        #[arg(long, value_name = "HEX")]
        sha256: Option<String>,
    },
    /// Lists the installed runtimes, and whether a program of this version opens them
    List,
    /// Removes a runtime
    Remove {
        /// The runtime's name in `list`
        name: String,
    },
    /// Shows the runtime that a program of this version opens, and why it opens no better one
    Which,
}

pub(crate) fn run(verb: &RuntimeVerb) -> Result<String, Box<dyn Error>> {
    let folder = || user_folder().ok_or("the user's folder for data is not known: set XDG_DATA_HOME");
    match verb {
        RuntimeVerb::Install { source, sha256 } => installed_from(source, sha256.as_deref(), &folder()?),
        RuntimeVerb::List => Ok(list(&folder()?)),
        RuntimeVerb::Remove { name } => {
            let set = remove(&folder()?, name)?;
            Ok(format!("removed {}, {}", set.folder.display(), Bytes(set.bytes())))
        }
        RuntimeVerb::Which => Ok(which(&found()?)),
    }
}

fn installed_from(source: &str, sha256: Option<&str>, folder: &Path) -> Result<String, Box<dyn Error>> {
    let stop = Stop::listen()?;
    let cancelled = stop.flag();
    let bar = bar(0, "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let set = install(&Source::new(source), sha256, folder, &mut |progress| {
        bar.set_length(progress.total.unwrap_or(progress.done));
        bar.set_position(progress.done);
        !cancelled.load(Relaxed)
    });
    bar.finish_and_clear();
    let set = match set {
        Err(autoplace_runtime::Error::Cancelled { .. }) => exit(130),
        set => set?,
    };
    let mut text = format!("installed {}, {}", set.folder.display(), Bytes(set.bytes()));
    if let Err(error) = set.fits(BUILD, TARGET) {
        text += &format!("\nnote: programs of this version do not open it: {error}");
    }
    Ok(text)
}

fn list(folder: &Path) -> String {
    let sets = if folder.is_dir() { installed(folder) } else { Vec::new() };
    if sets.is_empty() {
        return format!("no runtimes in {}", folder.display());
    }
    let mut lines = Vec::new();
    for set in sets {
        match set {
            Ok(set) => {
                lines.push(described(&set));
                let wrong = set.fits(BUILD, TARGET).and_then(|()| set.check()).err();
                lines.extend(wrong.map(|error| format!("    {error}")));
            }
            Err(error) => lines.push(error.to_string()),
        }
    }
    lines.join("\n")
}

fn which(choice: &Choice) -> String {
    let set = &choice.set;
    let mut lines = vec![described(set), format!("    in {}, by {}", set.folder.display(), set.manifest.compiler)];
    lines.extend(choice.passed_over.iter().map(|error| format!("passed over: {error}")));
    if cfg!(not(feature = "prebuilt-runtime")) {
        lines.push("note: llama.cpp is linked into this program, so it opens no runtime".to_owned());
    }
    lines.join("\n")
}

/// The runtime that a program of this version would open. Only a program that was itself built with `prebuilt-runtime`
/// can check whether the system has the libraries that a backend needs.
fn found() -> Result<Choice, autoplace_runtime::Error> {
    #[cfg(feature = "prebuilt-runtime")]
    return autoplace::runtime::find(None);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return autoplace_runtime::find(None, BUILD, TARGET, |_| Ok(()));
}

fn described(set: &Set) -> String {
    format!("{}  {}  {}", set.manifest.name, set.manifest.backends.join(" "), Bytes(set.bytes()))
}
