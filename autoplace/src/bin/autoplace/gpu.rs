//! GPUs that the machine does not have: `NAME=TOTAL[,free=SIZE]` flows in, a machine with exactly these flows out.

use std::str::FromStr;

use autoplace::llama_sys;
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::machine::{Gpu, Host, Machine};

use crate::sizes::size;

/// A GPU as it was written down. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SimulatedGpu {
    name: String,
    total: u64,
    free: u64,
}

impl FromStr for SimulatedGpu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, sizes) = text
            .split_once('=')
            .ok_or("a GPU is NAME=TOTAL or NAME=TOTAL,free=SIZE, such as `RTX 4090=24GiB`")?;
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_control) {
            return Err("the part before `=` is the GPU's name".to_owned());
        }
        let (total, rest) = match sizes.split_once(',') {
            Some((total, rest)) => (total, Some(rest)),
            None => (sizes, None),
        };
        let total = size(total)?;
        if total == 0 {
            return Err("a GPU has more than 0 bytes".to_owned());
        }
        let free = match rest.map(|rest| rest.trim().strip_prefix("free=")) {
            None => total,
            Some(Some(free)) => size(free)?,
            Some(None) => return Err("behind the total comes `,free=SIZE` or nothing".to_owned()),
        };
        if free > total {
            return Err(format!(
                "free is {free} bytes, more than the total of {total}"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            total,
            free,
        })
    }
}

/// The host as it is, with these GPUs and no other. With `register` they are devices of llama.cpp too, for as long as what is
/// returned beside the machine lives.
///
/// They count as CUDA cards whose context is still to be opened, as free memory is read off `nvidia-smi` beforehand.
pub(crate) fn machine(
    gpus: &[SimulatedGpu],
    register: bool,
) -> Result<(Machine, Vec<SimGpu>), llama_sys::Error> {
    let (host, notes) = Host::detect();
    let mut machine = Machine::new(host);
    machine.notes = notes;
    let mut cards = Vec::new();
    for simulated in gpus {
        let mut gpu = Gpu::new(&simulated.name)
            .total(simulated.total)
            .free(simulated.free)
            .backend("CUDA");
        // As it was given, the maker included.
        gpu.name.clone_from(&simulated.name);
        if register {
            let card = simulated.register()?;
            gpu = gpu.device(card.device().name());
            cards.push(card);
        }
        machine.gpus.push(gpu);
    }
    Ok((machine, cards))
}

impl SimulatedGpu {
    fn register(&self) -> Result<SimGpu, llama_sys::Error> {
        SimGpu::builder(&self.name)
            .backend("CUDA")
            .rules(Rules::Cuda)
            .total(self.total)
            .taken(self.total - self.free)
            .register()
    }
}

#[cfg(test)]
mod tests {
    use super::SimulatedGpu;
    use autoplace::machine::gib;

    #[test]
    fn a_gpu_is_a_name_a_total_and_what_is_free_of_it() {
        let gpu = |name: &str, total, free| SimulatedGpu {
            name: name.to_owned(),
            total,
            free,
        };
        let parse = |text: &str| text.parse::<SimulatedGpu>();
        assert_eq!(
            parse("RTX 4090=24GiB"),
            Ok(gpu("RTX 4090", gib(24), gib(24)))
        );
        assert_eq!(
            parse("RTX 4090=24GiB,free=22GiB"),
            Ok(gpu("RTX 4090", gib(24), gib(22)))
        );
        assert_eq!(parse(" X = 1G , free=0 "), Ok(gpu("X", gib(1), 0)));
    }

    #[test]
    fn what_is_no_gpu_is_refused_with_what_is_wrong_of_it() {
        for (text, word) in [
            ("RTX 4090", "NAME=TOTAL"),
            ("=8GiB", "name"),
            ("X=", "size"),
            ("X=0", "more than 0"),
            ("X=-8GiB", "size"),
            ("X=8GiB,free=9GiB", "more than the total"),
            ("X=8GiB,5GiB", "free="),
            ("X=8GiB,free=", "size"),
            ("X=8GiB,free=1GiB,free=2GiB", "size"),
        ] {
            let error = text.parse::<SimulatedGpu>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
