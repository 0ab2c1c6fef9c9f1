//! Adapts the threads to the processors of the process. A CPU quota or CPU set that changes during generation (`docker
//! update --cpus`) changes the threads of the next step.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Threads, cores};
use crate::machine::CpuWatch;

/// Interval between two checks. Each check reads some small files. Too many threads for so short a time cost little.
const EACH: Duration = Duration::from_secs(1);

/// The threads of a load, and the processors of its process.
#[derive(Debug)]
pub(in crate::load) struct Follower {
    threads: Threads,
    watch: CpuWatch,
    next: Instant,
}

impl Follower {
    pub(in crate::load) fn new(threads: &Threads) -> Self {
        Self::with(threads, CpuWatch::new(), Instant::now())
    }

    /// A follower of the machine that the files under `root` describe.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests have machines that are folders"))]
    fn under(threads: &Threads, root: &Path, now: Instant) -> Self {
        Self::with(threads, CpuWatch::under(root), now)
    }

    fn with(threads: &Threads, watch: CpuWatch, now: Instant) -> Self {
        Self { threads: threads.clone(), watch, next: now + EACH }
    }

    /// The new threads, if the processors have changed since the last check. Checks at most once a second.
    pub(in crate::load) fn look(&mut self, now: Instant) -> Option<Threads> {
        if now < self.next {
            return None;
        }
        self.next = now + EACH;
        let host = self.watch.changed()?;
        let threads = self.threads.clone().on(cores(&host));
        if threads == self.threads {
            return None;
        }
        tracing::info!(
            generation = threads.generation,
            prompt = threads.prompt,
            "the processors that this process may use have changed"
        );
        self.threads = threads.clone();
        Some(threads)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::load::threads::ThreadBasis;

    fn threads(generation: u32, prompt: u32, basis: ThreadBasis, prompt_is_asked: bool) -> Threads {
        Threads { generation, prompt, basis, prompt_is_asked }
    }

    #[test]
    fn a_quota_that_changes_during_generation_changes_the_automatic_threads() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for cpu in 0..8 {
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            write(&format!("{topology}/physical_package_id"), "0");
            write(&format!("{topology}/core_id"), &cpu.to_string());
        }
        write("proc/self/cgroup", "0::/job\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let limit = |text: &str| write("sys/fs/cgroup/job/cpu.max", text);
        limit("50000 100000\n");
        let begin = Instant::now();
        let of = |threads: &Threads| Follower::under(threads, folder.path(), begin);
        let per_core = threads(1, 1, ThreadBasis::TimeLimit, false);
        let mut followers = [
            of(&per_core),
            of(&threads(3, 3, ThreadBasis::Asked, true)),
            of(&threads(1, 2, ThreadBasis::FullOffload, true)),
        ];
        let mut looks = |seconds: u64| {
            let now = begin + Duration::from_secs(seconds);
            followers.each_mut().map(|follower| follower.look(now).map(|threads| (threads.generation, threads.prompt)))
        };
        assert_eq!(looks(0), [None; 3], "a look each second");
        assert_eq!(looks(2), [None; 3], "nothing has changed");
        limit("150000 100000\n");
        assert_eq!(looks(4), [Some((2, 2)), None, Some((2, 2))]);
        limit("max 100000\n");
        // The number cannot exceed what this computer itself allows.
        let here = std::thread::available_parallelism().map_or(1, |n| n.get() as u32).min(8);
        let all = |most: u32| here.min(most);
        let grown = (here != 2).then_some((all(8), all(8)));
        assert_eq!(looks(6), [grown, None, (all(4) != 2).then_some((all(4), 2))]);
        limit("50000 100000\n");
        let shrunk = |was: u32| (was != 1).then_some(1);
        assert_eq!(looks(8), [shrunk(here).map(|n| (n, n)), None, shrunk(all(4)).map(|n| (n, 2))]);
    }
}
