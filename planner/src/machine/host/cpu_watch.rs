//! Whether the processors that this process may use have changed since they were detected: `docker update --cpus`, a
//! cpuset that an administrator changed, `taskset` on a running process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Host;
use super::cgroup::Groups;
use super::linux;
use crate::machine::tree::{Notes, Tree};

/// The files of this process's groups that limit its processors.
const FILES: [(&str, &[&str]); 2] = [
    ("cpu", &["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    ("cpuset", &["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]),
];

/// Looks at what limits the processors of this process, again and again.
///
/// A look reads some files of a few bytes and allocates nothing. Linux alone has such files: elsewhere nothing changes.
#[derive(Debug)]
pub struct CpuWatch {
    root: PathBuf,
    files: Vec<Watched>,
    /// What is read of a file at a look.
    now: Vec<u8>,
}

/// A file that stays open, with what it held at the last look.
#[derive(Debug)]
struct Watched {
    file: File,
    /// Whether it is the process's status, of which only the processors that it may run on count.
    is_status: bool,
    held: Vec<u8>,
}

/// Bytes that a file has at most without an allocation: a status has some 1500, on a machine with very many processors
/// more.
const USUAL: usize = 8 << 10;

impl CpuWatch {
    /// Of this process.
    pub fn new() -> Self {
        Self::under(Path::new("/"))
    }

    /// Of the process that `{root}/proc/self` describes.
    pub fn under(root: &Path) -> Self {
        let mut watch = Self { root: root.to_owned(), files: Vec::new(), now: Vec::with_capacity(USUAL) };
        watch.open();
        watch
    }

    /// The processors as they are now, with the limit on their time, if one of the files holds something else than at
    /// the last look. The memory of that [`Host`] is 0.
    pub fn changed(&mut self) -> Option<Host> {
        let Self { files, now, .. } = self;
        // A group that is gone cannot be read.
        if files.iter().all(|watched| watched.read(now).is_ok_and(|held| held == watched.held)) {
            return None;
        }
        self.open();
        Some(linux::processors_under(Tree(&self.root), &mut Notes::default()))
    }

    /// Opens the files of the groups that the process is in now.
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
    /// What counts of the file as it is now, read into this buffer.
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
