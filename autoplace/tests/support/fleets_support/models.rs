//! The models' files, written once.

use std::path::PathBuf;

use autoplace::gguf::Header;
use autoplace::profile::ModelProfile;
use tempfile::TempDir;

use crate::random_weights;

/// A model's file, and what is known of it.
pub(crate) struct Model {
    pub(crate) title: String,
    pub(crate) path: PathBuf,
    pub(crate) profile: ModelProfile,
}

/// All of them; the files live as long.
pub(crate) struct Models {
    pub(crate) all: Vec<Model>,
    _folder: TempDir,
}

impl Models {
    pub(crate) fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sketches = random_weights::all()
            .into_iter()
            .chain(random_weights::deep());
        let all = sketches.map(|mut sketch| {
            sketch.vocabulary();
            // As far as a context may grow, its memory is really written.
            sketch.u32("context_length", 8192);
            let path = random_weights::write(&sketch, folder.path());
            let header = Header::open(&path).unwrap();
            Model {
                title: sketch.title(),
                path,
                profile: ModelProfile::from_header(&header).unwrap(),
            }
        });
        Self {
            all: all.collect(),
            _folder: folder,
        }
    }
}
