//! A record of the measured machine: the library's report on the machine, the drivers, and the build.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use autoplace::llama_sys::build_info;
use autoplace::load;
use serde_json::{Value, json};

use crate::setting::{Setting, Size};

/// Writes `machine.json`. A backend that reports a card's memory opens a context on the card. If the memory of the
/// context itself is to be measured, another process must open the card. So this function asks NVIDIA's driver first,
/// and asks a backend only for cards of other vendors.
pub(crate) fn record(setting: &Setting, build: Option<&Path>) -> Result<()> {
    let mut machine = autoplace::machine::Machine::detect();
    if !setting.simulated && machine.gpus.is_empty() {
        machine = load::detect()?;
    }
    let build_record: Value = match build {
        None => Value::Null,
        Some(file) => {
            let text = std::fs::read(file).with_context(|| format!("--build: cannot read {}", file.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("--build: {} is no JSON", file.display()))?
        }
    };
    let info = build_info();
    let record = json!({
        "date": said("date", &["-u", "+%F"]),
        "simulated": setting.simulated,
        "small": setting.size == Size::Small,
        "machine": serde_json::from_str::<Value>(&machine.to_json()?)?,
        "system": said("uname", &["-srm"]),
        "nvidia": said("nvidia-smi", &["--query-gpu=name,driver_version,memory.total,compute_cap,pcie.link.gen.current,pcie.link.width.current", "--format=csv"]),
        "build": {
            "name": load::build_name(),
            "instruction_set": info.instruction_set,
            "openmp": info.openmp,
            "bundle": build_record,
        },
    });
    setting.keep("machine.json", &serde_json::to_vec_pretty(&record)?)
}

/// The output of a program; `None` if it does not exist or fails.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}
