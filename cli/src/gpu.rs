//! GPUs that this computer does not have: `NAME`, `NAME=TOTAL`, or a machine from a file flows in, a machine with
//! exactly these flows out.

use std::error::Error;
use std::str::FromStr;

use autoplace::llama_sys::sim::{MAX_CARDS, Rules, SimGpu};
use autoplace::load::build_name;
use autoplace::machine::{Gpu, Host, Machine, MeasurementCache};

use crate::sizes::size;

/// A GPU as it was written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SimulatedGpu(Gpu);

impl FromStr for SimulatedGpu {
    type Err = String;

    /// `NAME[#NUMBER][=TOTAL][,free=SIZE]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (card, free) = match text.split_once(',') {
            Some((card, rest)) => {
                let free = rest.trim().strip_prefix("free=");
                (card, Some(size(free.ok_or("behind the total comes `,free=SIZE` or nothing")?)?))
            }
            None => (text, None),
        };
        let (name, total) = match card.split_once('=') {
            Some((name, total)) => (name, Some(size(total)?)),
            None => (card, None),
        };
        let (name, number) = match name.split_once('#') {
            Some((name, number)) => {
                let number = number.trim().parse::<u8>();
                (name, Some(number.map_err(|_| "behind `#` comes the GPU's number, such as `RTX 4090#1`")?))
            }
            None => (name, None),
        };
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_control) {
            return Err("the part before `=` is the GPU's name".to_owned());
        }
        let mut gpu = match total {
            Some(0) => return Err("a GPU has more than 0 bytes".to_owned()),
            Some(total) => {
                let mut gpu = Gpu::new(name).total(total).backend("CUDA");
                // As it was given, the maker included.
                name.clone_into(&mut gpu.name);
                gpu
            }
            None => Gpu::named(name)
                .map_err(|error| format!("{error}; a GPU that it does not have is NAME=TOTAL, such as `X=24GiB`"))?,
        };
        if let Some(number) = number {
            gpu.name = format!("{} #{number}", gpu.name);
        }
        if let Some(free) = free {
            if free > gpu.total {
                return Err(format!("free is {free} bytes, more than the total of {}", gpu.total));
            }
            gpu.free = free;
        }
        Ok(Self(gpu))
    }
}

/// Refuses GPUs that cannot be told apart, and more than llama.cpp takes.
pub(crate) fn check(gpus: &[SimulatedGpu]) -> Result<(), String> {
    if gpus.len() > MAX_CARDS {
        let times = gpus.len();
        return Err(format!("--gpu is given {times} times: llama.cpp takes at most {MAX_CARDS} GPUs"));
    }
    let names: Vec<&str> = gpus.iter().map(|gpu| gpu.0.name.as_str()).collect();
    let mut twice = names.iter().enumerate().filter(|(index, name)| names[..*index].contains(name));
    match twice.next() {
        Some((_, name)) => Err(format!("--gpu: two GPUs are called `{name}`: number them, `{name}#0` and `{name}#1`")),
        None => Ok(()),
    }
}

/// The host as it is, with these GPUs and no other.
pub(crate) fn machine(gpus: &[SimulatedGpu]) -> Machine {
    let (mut host, notes) = Host::detect();
    host.bandwidth = MeasurementCache::user().bandwidth(&host);
    host.rates = MeasurementCache::user().host_rates(&host, &build_name(), |_| true);
    let mut machine = Machine::new(host);
    machine.notes = notes;
    machine.gpus = gpus.iter().map(|gpu| gpu.0.clone()).collect();
    machine
}

/// A machine whose GPUs are not there. With `register` they are devices of llama.cpp, for as long as what is
/// returned beside the machine lives. A context is still to be opened on them, as free memory is read off
/// `nvidia-smi` beforehand.
pub(crate) fn simulated(mut machine: Machine, register: bool) -> Result<(Machine, Vec<SimGpu>), Box<dyn Error>> {
    let mut cards = Vec::new();
    if register {
        if machine.gpus.len() > MAX_CARDS {
            let count = machine.gpus.len();
            return Err(format!("there are {count} GPUs: llama.cpp takes at most {MAX_CARDS}").into());
        }
        for gpu in &mut machine.gpus {
            let card = registered(gpu)?;
            gpu.device = Some(card.device().name());
            cards.push(card);
        }
    }
    Ok((machine, cards))
}

/// The host as it is, and these GPUs as devices of llama.cpp, on which the processor computes.
pub(crate) fn as_fast_as_the_host(gpus: &[SimulatedGpu]) -> Result<(Machine, Vec<SimGpu>), Box<dyn Error>> {
    let (mut machine, cards) = simulated(machine(gpus), true)?;
    let bandwidth = machine.host.bandwidth.or_else(|| machine.host.measure_bandwidth());
    machine.host.bandwidth = bandwidth;
    machine.gpus.iter_mut().for_each(|gpu| gpu.bandwidth = bandwidth);
    Ok((machine, cards))
}

/// A device of llama.cpp in a GPU's place.
fn registered(gpu: &Gpu) -> Result<SimGpu, Box<dyn Error>> {
    let rules = match gpu.backend.as_str() {
        "CUDA" | "ROCm" => Rules::Cuda,
        "MTL" => Rules::Metal,
        backend => {
            let name = &gpu.name;
            return Err(
                format!("how {backend} allocates on {name} only the card itself tells: ask with --no-probe").into()
            );
        }
    };
    let taken = gpu.total.saturating_sub(gpu.free);
    Ok(SimGpu::builder(&gpu.name).backend(&gpu.backend).rules(rules).total(gpu.total).taken(taken).register()?)
}

#[cfg(test)]
mod tests {
    use super::SimulatedGpu;
    use autoplace::machine::gib;

    #[test]
    fn a_gpu_is_a_name_a_total_and_what_is_free_of_it() {
        let gpu = |name: &str, total, free| (name.to_owned(), total, free);
        let parse = |text: &str| {
            let SimulatedGpu(gpu) = text.parse()?;
            Ok::<_, String>((gpu.name, gpu.total, gpu.free))
        };
        assert_eq!(parse("RTX 4090=24GiB"), Ok(gpu("RTX 4090", gib(24), gib(24))));
        assert_eq!(parse("RTX 4090=24GiB,free=22GiB"), Ok(gpu("RTX 4090", gib(24), gib(22))));
        assert_eq!(parse(" X = 1G , free=0 "), Ok(gpu("X", gib(1), 0)));
        assert_eq!(parse("X#1=1G"), Ok(gpu("X #1", gib(1), gib(1))));
    }

    #[test]
    fn a_name_of_the_catalogue_needs_no_total() {
        let SimulatedGpu(known) = "RTX 4090,free=22GiB".parse().unwrap();
        assert_eq!((known.total, known.free), (gib(24), gib(22)));
        assert_eq!(known.backend, "CUDA");
        assert!(known.bandwidth.is_some());
        let SimulatedGpu(mac) = "M4 Max 64GB".parse().unwrap();
        assert_eq!((mac.total, mac.backend.as_str()), (gib(48), "MTL"));
    }

    #[test]
    fn what_is_no_gpu_is_refused_with_what_is_wrong_of_it() {
        for (text, word) in [
            ("RTX 4095", "RTX 4090"),
            ("X", "NAME=TOTAL"),
            ("RTX 3060", "RTX 3060 12GB"),
            ("RTX 4090,free=25GiB", "more than the total"),
            ("", "name"),
            ("=8GiB", "name"),
            ("X=", "size"),
            ("X=0", "more than 0"),
            ("X=-8GiB", "size"),
            ("X=8 apples", "size"),
            ("X=99999999999T", "64 bits"),
            ("X=8GiB,free=9GiB", "more than the total"),
            ("X=8GiB,5GiB", "free="),
            ("X=8GiB,free=", "size"),
            ("X=8GiB,free=1GiB,free=2GiB", "size"),
            ("X#one=8GiB", "number"),
        ] {
            let error = text.parse::<SimulatedGpu>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
