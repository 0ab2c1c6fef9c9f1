//! Watches for changes of the processors that this process may use: `docker update --cpus`, a cpuset changed by an
//! administrator, `taskset` on a running process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Host;
use super::cgroup::Groups;
use super::linux;
use crate::machine::tree::{Notes, Tree};

/// The files of control groups that limit processors.
const FILES: [(&str, &[&str]); 2] = [
    ("cpu", &["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    ("cpuset", &["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]),
];

/// Checks repeatedly for changed limits on this process's processors.
///
/// A check reads a few small files and allocates nothing. Systems other than Linux have no such files, so a watch never
/// reports a change there.
#[derive(Debug)]
pub struct CpuWatch {
    root: PathBuf,
    files: Vec<Watched>,
    /// Buffer for the current content of a file.
    now: Vec<u8>,
}

/// An open file, with the content that it had at the last check.
#[derive(Debug)]
struct Watched {
    file: File,
    /// Whether the file is the process's status. Only its line of allowed processors matters.
    is_status: bool,
    held: Vec<u8>,
}

/// Initial size of the buffer: a status has about 1500 bytes, and more on a machine with very many processors.
const BUFFER_BYTES: usize = 8 << 10;

impl CpuWatch {
    /// Watches this process.
    pub fn new() -> Self {
        Self::under(Path::new("/"))
    }

    /// Watches the process that `{root}/proc/self` describes.
    pub fn under(root: &Path) -> Self {
        let mut watch = Self { root: root.to_owned(), files: Vec::new(), now: Vec::with_capacity(BUFFER_BYTES) };
        watch.open();
        watch
    }

    /// The processors that this process may use now, with the limit on processor time, if a file has changed since the
    /// last check. The memory of the returned [`Host`] is 0.
    pub fn changed(&mut self) -> Option<Host> {
        let Self { files, now, .. } = self;
        // Reading fails if a group no longer exists; this also counts as a change.
        if files.iter().all(|watched| watched.read(now).is_ok_and(|held| held == watched.held)) {
            return None;
        }
        self.open();
        Some(linux::processors_under(Tree(&self.root), &mut Notes::default()))
    }

    /// Opens the files of the process's current groups.
    fn open(&mut self) {
        let tree = Tree(&self.root);
        let groups = Groups::read(tree, &mut Notes::default());
        let mut files: Vec<String> = ["/proc/self/cgroup", linux::STATUS].map(str::to_owned).into();
        for (controller, names) in FILES {
            let folders = groups.folder_names(controller);
            files.extend(folders.flat_map(|folder| names.iter().map(move |name| format!("{folder}/{name}"))));
        }
        self.files.clear();
        for name in files {
            let Ok(file) = File::open(tree.locate(&name)) else { continue };
            let mut watched = Watched { file, is_status: name == linux::STATUS, held: Vec::new() };
            if let Ok(held) = watched.read(&mut self.now).map(<[u8]>::to_vec) {
                watched.held = held;
                self.files.push(watched);
            }
        }
    }
}

impl Watched {
    /// The relevant content of the file, read into the buffer.
    fn read<'a>(&self, now: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        now.clear();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(now)?;
        if !self.is_status {
            return Ok(now);
        }
        let mut lines = now.split(|&byte| byte == b'\n');
        Ok(lines.find(|line| line.starts_with(linux::CPUS_ALLOWED.as_bytes())).unwrap_or_default())
    }
}

impl Default for CpuWatch {
    fn default() -> Self {
        Self::new()
    }
}
