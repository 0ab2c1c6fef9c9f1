//! Simulated GPUs. In: `NAME`, `NAME=TOTAL`, or the description of a machine in a file. Out: a machine with exactly
//! these GPUs.

use std::error::Error;

use autoplace::llama_sys::sim::{MAX_CARDS, Rules, SimGpu};
use autoplace::load::build_name;
use autoplace::machine::{Gpu, GpuKind, Host, Machine, MeasurementCache, gib, mib};

use crate::sizes::{cut, size};

/// Parses a GPU: `NAME[#NUMBER][=TOTAL][,free=SIZE]`.
pub(crate) fn gpu(text: &str) -> Result<Gpu, String> {
    let (card, free) = cut(text, ',');
    let (card, total) = cut(card, '=');
    let (name, number) = cut(card, '#');
    let free = free.map(|rest| {
        let free = rest.trim().strip_prefix("free=");
        size(free.ok_or("only `,free=SIZE` may follow the total")?)
    });
    let (free, total) = (free.transpose()?, total.map(size).transpose()?);
    let number = number.map(|number| number.trim().parse::<u8>()).transpose();
    let number = number.map_err(|_| "the GPU's number must follow `#`, as in `RTX 4090#1`")?;
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_control) {
        return Err("the part before `=` is the GPU's name".to_owned());
    }
    let mut gpu = match total {
        Some(0) => return Err("a GPU must have more than 0 bytes".to_owned()),
        Some(bytes) if bytes < mib(1) => {
            return Err(format!("a GPU has more than {bytes} bytes: write a unit, as in 12GiB"));
        }
        Some(total) => {
            // The speed comes from the catalogue, and the size comes from the text. If a GPU is not in the catalogue,
            // it is assumed to be a CUDA card.
            let known = Gpu::named(&format!("{name} {}GiB", total >> 30)).or_else(|_| Gpu::named(name));
            let mut gpu = known.unwrap_or_else(|_| Gpu::new(name)).total(total).free(total);
            // The name stays as the user wrote it; only the maker's name is added.
            name.clone_into(&mut gpu.name);
            gpu
        }
        None => Gpu::named(name)
            .map_err(|error| format!("{error}; describe any other GPU as NAME=TOTAL, such as `X=24GiB`"))?,
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
    Ok(gpu)
}

/// Refuses two GPUs with the same identity, and more GPUs than llama.cpp supports.
pub(crate) fn check(gpus: &[Gpu]) -> Result<(), String> {
    if gpus.len() > MAX_CARDS {
        let times = gpus.len();
        return Err(format!("--gpu is given {times} times: llama.cpp takes at most {MAX_CARDS} GPUs"));
    }
    let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let mut twice = names.iter().enumerate().filter(|(index, name)| names[..*index].contains(name));
    match twice.next() {
        Some((_, name)) => Err(format!("--gpu: two GPUs are called `{name}`: write `#0` and `#1` after their names")),
        None => Ok(()),
    }
}

/// A machine with this computer's host, and exactly these GPUs.
pub(crate) fn machine(gpus: &[Gpu]) -> Machine {
    let (mut host, notes) = Host::detect();
    host.rates = MeasurementCache::user().host_rates(&host, &build_name());
    let mut machine = Machine::new(host);
    machine.notes = notes;
    machine.gpus = gpus.to_vec();
    machine
}

/// If the only GPU shares the computer's memory: the size of that memory, and its bandwidth. A GPU with Metal may use
/// two thirds or three quarters of the memory.
pub(crate) fn memory_of(gpus: &[Gpu]) -> Option<(u64, Option<u64>)> {
    let [chip] = gpus else { return None };
    let memory = match &*chip.backend {
        "MTL" if chip.total < gib(24) => chip.total / 2 * 3,
        "MTL" => chip.total / 3 * 4,
        // On a DGX Spark or a Jetson, the GPU may use all of the memory.
        "CUDA" if chip.kind == GpuKind::Integrated => chip.total,
        _ => return None,
    };
    Some((memory, chip.bandwidth.map(|bandwidth| bandwidth.bytes_per_second)))
}

/// A machine with its simulated GPUs. As long as they are not dropped, they are devices of llama.cpp.
pub(crate) type Simulated = (Machine, Vec<SimGpu>);

/// Registers a machine's GPUs as simulated devices of llama.cpp. Their free memory is the number that `nvidia-smi`
/// shows before a program creates a context.
pub(crate) fn simulated(mut machine: Machine) -> Result<Simulated, Box<dyn Error>> {
    if machine.gpus.len() > MAX_CARDS {
        let count = machine.gpus.len();
        return Err(format!("there are {count} GPUs: llama.cpp takes at most {MAX_CARDS}").into());
    }
    let cards: Vec<SimGpu> = machine.gpus.iter().map(registered).collect::<Result<_, _>>()?;
    for (gpu, card) in machine.gpus.iter_mut().zip(&cards) {
        gpu.device = Some(card.device().name());
    }
    Ok((machine, cards))
}

/// The bandwidth that is assumed for the host and for simulated GPUs before anything is measured, in bytes per second.
/// It is that of two channels of DDR4-3200.
const UNMEASURED: u64 = 51_200_000_000;

/// A machine with this computer's host, and these GPUs as simulated devices. The processor does their computations.
pub(crate) fn as_fast_as_the_host(gpus: &[Gpu]) -> Result<Simulated, Box<dyn Error>> {
    let (mut machine, cards) = simulated(machine(gpus))?;
    machine.host = machine.host.bandwidth(UNMEASURED);
    machine.gpus.iter_mut().for_each(|gpu| gpu.bandwidth = machine.host.bandwidth);
    Ok((machine, cards))
}

/// Registers a GPU as a simulated device.
fn registered(gpu: &Gpu) -> Result<SimGpu, Box<dyn Error>> {
    let rules = match gpu.backend.as_str() {
        "CUDA" | "ROCm" => Rules::Cuda,
        "MTL" => Rules::Metal,
        backend => {
            let what = format!("how {backend} allocates memory on {}", gpu.name);
            return Err(format!("only the GPU itself can tell {what}: use --no-probe").into());
        }
    };
    let taken = gpu.total.saturating_sub(gpu.free);
    Ok(SimGpu::builder(&gpu.name).backend(&gpu.backend).rules(rules).total(gpu.total).taken(taken).register()?)
}

#[cfg(test)]
mod tests {
    use super::{gpu, memory_of};
    use autoplace::machine::gib;

    #[test]
    fn a_gpu_is_a_name_with_total_and_free_bytes_or_a_name_in_the_catalogue() {
        for (text, name, total, free) in [
            ("RTX 4090=24GiB", "RTX 4090", gib(24), gib(24)),
            ("RTX 4090=24GiB,free=22GiB", "RTX 4090", gib(24), gib(22)),
            (" X = 1G , free=0 ", "X", gib(1), 0),
            ("X#1=1G", "X #1", gib(1), gib(1)),
        ] {
            let gpu = gpu(text).unwrap();
            assert_eq!((&*gpu.name, gpu.total, gpu.free), (name, total, free), "{text}");
            assert_eq!(gpu.bandwidth.is_some(), name.starts_with("RTX"), "{text}");
        }
        assert!(gpu("RTX 409").unwrap_err().contains("RTX 4090"));
        assert!(gpu("RTX 3060=12").unwrap_err().contains("write a unit, as in 12GiB"));
        let (card, chip) = (gpu("RTX 4090,free=22GiB").unwrap(), gpu("M4 Max 64GB").unwrap());
        assert_eq!((card.total, card.free, chip.total), (gib(24), gib(22), gib(48)));
        assert_eq!(memory_of(&[chip]), Some((gib(64), Some(546_000_000_000))));
        assert_eq!(memory_of(&[card]), None);
        let spark = gpu("DGX Spark").unwrap();
        assert_eq!(memory_of(&[spark]), Some((gib(128), Some(273_000_000_000))));
        assert_eq!(gpu("R9700").unwrap().total, gib(32));
        assert!(gpu("PRO 6000").unwrap_err().contains("similar names are RTX PRO 6000"));
    }
}
