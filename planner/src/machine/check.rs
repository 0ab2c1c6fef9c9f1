//! Whether a machine that was written down makes sense: a file may have been edited by hand, or come from
//! another version.

use super::Machine;
use super::gpu::Gpu;

/// A machine that cannot be: the place in it, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} {problem}")]
#[non_exhaustive]
pub struct MachineError {
    /// The field, as a path: `gpus[0].free`.
    pub place: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Machine {
    /// Whether its figures can be those of a machine. A detected one's always can; a machine that was read from a file
    /// should be asked before a plan is made for it.
    ///
    /// # Errors
    ///
    /// [`MachineError`] names the first field that contradicts another.
    pub fn check(&self) -> Result<(), MachineError> {
        let host = &self.host;
        at_most("host.available", host.available, "total", host.total)?;
        let (available, total) = (host.system_available, host.total);
        at_most("host.system_available", available, "total", total)?;
        rate("host.bandwidth", host.bandwidth)?;
        rate("host.disk", host.disk)?;
        let unused = self.unused_gpus.iter().map(|unused| &unused.gpu);
        for (index, gpu) in self.gpus.iter().enumerate() {
            let place = format!("gpus[{index}]");
            check_gpu(&place, gpu)?;
            if gpu.total == 0 {
                return Err(wrong(format!("{place}.total"), "is 0"));
            }
        }
        for (index, gpu) in unused.enumerate() {
            check_gpu(&format!("unused_gpus[{index}].gpu"), gpu)?;
        }
        Ok(())
    }
}

fn check_gpu(place: &str, gpu: &Gpu) -> Result<(), MachineError> {
    at_most(&format!("{place}.free"), gpu.free, "total", gpu.total)?;
    if let Some(pools) = gpu.pools {
        for (name, pool) in [("own", pools.own), ("shared", pools.shared)] {
            let place = format!("{place}.pools.{name}.free");
            at_most(&place, pool.free, "total", pool.total)?;
        }
    }
    let learned = gpu.learned.map_or(0, |learned| learned.total());
    at_most(&format!("{place}.learned"), learned, "total", gpu.total)?;
    if gpu.alignment.is_some_and(|bytes| !bytes.is_power_of_two()) {
        return Err(wrong(format!("{place}.alignment"), "is no power of two"));
    }
    if let Some(link) = gpu.pcie {
        for (name, rate) in [("max", Some(link.max)), ("current", link.current)] {
            if rate.is_some_and(|rate| !rate.exists()) {
                let place = format!("{place}.pcie.{name}");
                return Err(wrong(
                    place,
                    "is no PCIe generation 1 to 6 of 1 to 32 lanes",
                ));
            }
        }
    }
    rate(&format!("{place}.bandwidth"), gpu.bandwidth)
}

fn rate(place: &str, bandwidth: Option<super::Bandwidth>) -> Result<(), MachineError> {
    if bandwidth.is_some_and(|found| found.bytes_per_second == 0) {
        let place = format!("{place}.bytes_per_second");
        return Err(wrong(place, "is 0: leave out what is not known"));
    }
    Ok(())
}

fn at_most(place: &str, part: u64, name: &str, whole: u64) -> Result<(), MachineError> {
    if part > whole {
        let problem = format!("is {part}, more than {name}, which is {whole}");
        return Err(wrong(place.to_owned(), problem));
    }
    Ok(())
}

fn wrong(place: String, problem: impl Into<String>) -> MachineError {
    MachineError {
        place,
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{
        Bandwidth, BandwidthSource, Date, Gpu, Host, LearnedHeadroom, Machine, PcieLink, PcieRate,
        gib,
    };

    fn machine() -> Machine {
        let link = PcieLink::new(PcieRate::new(4, 16).unwrap());
        let card = Gpu::named("RTX 4090").unwrap().pcie(link);
        Machine::new(Host::new(gib(64)).bandwidth(60_000_000_000)).with_gpu(card)
    }

    /// Checks what is said of a machine that was changed.
    #[track_caller]
    fn says(words: &str, change: impl FnOnce(&mut Machine)) {
        let mut machine = machine();
        machine.check().unwrap();
        change(&mut machine);
        let text = machine.check().unwrap_err().to_string();
        assert!(text.starts_with(words), "{text}");
    }

    #[test]
    fn a_field_that_contradicts_another_is_named() {
        let more = "gpus[0].free is 26843545600, more than total, which is 25769803776";
        says(more, |it| it.gpus[0].free = gib(25));
        says("host.available is ", |it| it.host.available = gib(65));
        says("host.system_available is ", |it| {
            it.host.system_available = gib(65)
        });
        says("gpus[0].total is 0", |it| {
            (it.gpus[0].total, it.gpus[0].free) = (0, 0)
        });
        let learned = LearnedHeadroom::new(gib(20), u64::MAX, Date::new(2026, 11, 21).unwrap());
        says("gpus[0].learned is ", |it| {
            it.gpus[0].learned = Some(learned)
        });
    }

    #[test]
    fn a_figure_that_cannot_be_is_named() {
        for wrong in [0, 3, u64::MAX] {
            let text = "gpus[0].alignment is no power of two";
            says(text, |it| it.gpus[0].alignment = Some(wrong));
        }
        let none = |bandwidth: &mut Option<Bandwidth>| {
            *bandwidth = Some(Bandwidth::new(0, BandwidthSource::Stated));
        };
        says("host.bandwidth.bytes_per_second is 0", |it| {
            none(&mut it.host.bandwidth)
        });
        says("gpus[0].bandwidth.bytes_per_second is 0", |it| {
            none(&mut it.gpus[0].bandwidth)
        });
        says("gpus[0].pcie.max is no PCIe", |it| {
            it.gpus[0].pcie.as_mut().unwrap().max.lanes = 0
        });
    }
}
