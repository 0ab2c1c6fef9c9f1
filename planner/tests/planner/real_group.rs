//! A control group of this computer, which a test creates if it has the rights to do so.

use std::fs;
use std::path::PathBuf;
use std::process;

/// A group with a limit on processor time. This process enters the group, and leaves it when the `RealGroup` is
/// dropped.
pub(crate) struct RealGroup {
    folder: PathBuf,
    parent: PathBuf,
    is_v1: bool,
}

impl RealGroup {
    /// Returns `None` if no group can be created, as in most containers and for a user without the rights.
    pub(crate) fn enter(quota_us: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let group =
            |of: &str| own.lines().find_map(|line| Some(line.split_once(of)?.1.trim_start_matches('/').to_owned()));
        // The controller is in version 1, alone or together with `cpuacct`, or in version 2.
        let parents = [(":cpu:", "/sys/fs/cgroup/cpu", true), (":cpu,cpuacct:", "/sys/fs/cgroup/cpu,cpuacct", true)];
        let v2 = ("0::", "/sys/fs/cgroup", false);
        parents.into_iter().chain([v2]).find_map(|(of, mount, is_v1)| {
            let parent = PathBuf::from(mount).join(group(of)?);
            let folder = parent.join(format!("autoplace-test-{}", process::id()));
            fs::create_dir(&folder).ok()?;
            let made = Self { folder, parent, is_v1 };
            // If this fails, dropping `made` removes the group.
            let entered =
                made.set(quota_us) && fs::write(made.folder.join("cgroup.procs"), process::id().to_string()).is_ok();
            entered.then_some(made)
        })
    }

    /// Sets the limit, in microseconds per tenth of a second. Returns whether the kernel accepted it.
    pub(crate) fn set(&self, quota_us: u64) -> bool {
        let (file, text) = match self.is_v1 {
            true => ("cpu.cfs_quota_us", quota_us.to_string()),
            false => ("cpu.max", format!("{quota_us} 100000")),
        };
        let file = self.folder.join(file);
        file.exists() && fs::write(file, text).is_ok()
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), process::id().to_string());
        let _ = fs::remove_dir(&self.folder);
    }
}
