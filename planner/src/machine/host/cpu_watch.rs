//! Whether the processors that this process may use have changed since they were detected: `docker update --cpus`, a
//! cpuset that an administrator changed, `taskset` on a running process.

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
/// A look reads some files of a few bytes, of which Linux alone has any: elsewhere nothing changes.
#[derive(Debug)]
pub struct CpuWatch {
    root: PathBuf,
    /// The files that there are, with what they held.
    files: Vec<(String, String)>,
}

impl CpuWatch {
    /// Of this process.
    pub fn new() -> Self {
        Self::under(Path::new("/"))
    }

    /// Of the process that `{root}/proc/self` describes.
    pub fn under(root: &Path) -> Self {
        let mut watch = Self { root: root.to_owned(), files: Vec::new() };
        watch.files = watch.read();
        watch
    }

    /// The processors as they are now, with the limit on their time, if one of the files holds something else than at
    /// the last look. The memory of that [`Host`] is 0.
    pub fn changed(&mut self) -> Option<Host> {
        let is_same = self.files.iter().all(|(file, text)| self.text(file).as_ref() == Some(text));
        if is_same {
            return None;
        }
        self.files = self.read();
        let notes = &mut Notes::default();
        Some(linux::processors_under(Tree(&self.root), notes))
    }

    fn read(&self) -> Vec<(String, String)> {
        let groups = Groups::read(Tree(&self.root), &mut Notes::default());
        let mut files: Vec<String> = ["/proc/self/cgroup", linux::STATUS].map(str::to_owned).into();
        for (controller, names) in FILES {
            let folders = groups.folder_names(controller);
            files.extend(folders.flat_map(|folder| names.iter().map(move |name| format!("{folder}/{name}"))));
        }
        files.into_iter().filter_map(|file| Some((file.clone(), self.text(&file)?))).collect()
    }

    /// What a file holds; of a process's status only the processors that it may run on.
    fn text(&self, file: &str) -> Option<String> {
        let text = Tree(&self.root).read(file, &mut Notes::default())?;
        Some(if file == linux::STATUS {
            linux::listed_in(&text, linux::CPUS_ALLOWED).unwrap_or_default()
        } else {
            text
        })
    }
}

impl Default for CpuWatch {
    fn default() -> Self {
        Self::new()
    }
}
