//! Random cases, what must be true of all of them, and how many there are of each kind.
mod case;
mod checks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use autoplace::gguf::Header;
use autoplace::profile::ModelProfile;
use tempfile::TempDir;

use crate::rig::none_failed;
pub(crate) use case::Case;
pub(crate) use checks::run;
use test_support::random_weights;

/// The file of a model, and its profile.
pub(crate) struct Model {
    pub(crate) title: String,
    pub(crate) path: PathBuf,
    pub(crate) profile: ModelProfile,
}

/// All models. The files are written once. When this value is dropped, they are removed.
pub(crate) struct Models {
    pub(crate) all: Vec<Model>,
    _folder: TempDir,
}

impl Models {
    pub(crate) fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let all = random_weights::all().into_iter().chain(random_weights::deep()).map(|mut sketch| {
            sketch.vocabulary();
            // If a context may grow, it really uses its memory, so its length is limited.
            sketch.u32("context_length", 8192);
            let path = random_weights::write(&sketch, folder.path());
            let header = Header::open(&path).unwrap();
            Model { title: sketch.title(), path, profile: ModelProfile::from_header(&header).unwrap() }
        });
        Self { all: all.collect(), _folder: folder }
    }
}

/// Runs the cases whose numbers are below `cases`. If there are violations, fails with all of them. The cases must be
/// different, so this also fails if one kind of case is too rare. For each kind, `least` has the required number of
/// cases per thousand.
#[track_caller]
pub(crate) fn run_all(cases: u64, least: &[(&str, u64)], mut kinds_of: impl FnMut(u64) -> Result<Vec<String>, String>) {
    let (mut counts, mut failures) = (BTreeMap::<String, u64>::new(), Vec::new());
    for number in 0..cases {
        match kinds_of(number) {
            Ok(kinds) => kinds.into_iter().for_each(|kind| *counts.entry(kind).or_default() += 1),
            Err(fault) => failures.push(fault),
        }
    }
    for (kind, count) in &counts {
        println!("{count:5} {kind}");
    }
    none_failed(&failures, usize::try_from(cases).unwrap());
    let of = |kind| counts.get(kind).copied().unwrap_or_default();
    let lacking: Vec<_> = least.iter().filter(|&&(kind, least)| of(kind) < least * cases / 1000).collect();
    assert!(lacking.is_empty(), "too few of {lacking:?}");
}
