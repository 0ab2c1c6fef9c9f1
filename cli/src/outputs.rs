//! What `plan` gives beside its report: a file to follow the plan again, its equivalent for another tool.

use std::error::Error;
use std::path::PathBuf;

use autoplace::gguf::Header;
use autoplace::machine::Machine;
use autoplace::plan::{Plan, Request, SavedPlan};

use crate::emit::{Tool, emit};

/// Where the outputs go.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Saves the plan to a file, which `generate --plan` follows exactly
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Prints the equivalent for another tool instead: llama.cpp, ollama, lm-studio
    #[arg(long, value_name = "TOOL", value_enum, hide_possible_values = true, conflicts_with = "json")]
    pub(crate) emit: Option<Tool>,
}

impl OutputArgs {
    /// The request with what the tool that the plan is for does unlike us.
    pub(crate) fn request(&self, request: Request) -> Request {
        match self.emit {
            Some(tool) if tool.keeps_all_logits() => request.n_outputs_max(0),
            _ => request,
        }
    }

    /// Writes the files that are asked for; what is to be printed instead of the report, if something is.
    ///
    /// `machine` is the one that was planned for, `described` the same before its GPUs were simulated, if they were.
    pub(crate) fn give(
        &self,
        plan: &Plan,
        request: &Request,
        header: &Header,
        machine: &Machine,
        described: Option<&Machine>,
    ) -> Result<Option<String>, Box<dyn Error>> {
        let plan = with_real_names(plan, machine, described);
        let emitted = self.emit.map(|tool| emit(&plan, tool)).transpose()?;
        if let Some(file) = &self.save {
            SavedPlan::new(plan, request.clone(), header)?.write(file)?;
        }
        Ok(emitted.map(|text| text.trim_end().to_owned()))
    }
}

/// The plan with the names that its GPUs have where they are: a simulated one's is this process's own.
fn with_real_names(plan: &Plan, machine: &Machine, described: Option<&Machine>) -> Plan {
    let mut plan = plan.clone();
    let Some(described) = described else {
        return plan;
    };
    // What is not simulated has none, nor has the host.
    for placement in plan.placements.iter_mut().filter(|it| it.device.is_some()) {
        let index = machine.gpus.iter().position(|gpu| gpu.device == placement.device);
        let real = index.and_then(|index| described.gpus.get(index));
        placement.device = real.and_then(|gpu| gpu.device.clone());
    }
    plan
}
