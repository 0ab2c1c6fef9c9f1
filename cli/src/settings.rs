//! The settings for a load, with llama.cpp's names: those of the context ([`SettingArgs`]) and those of the devices
//! ([`DeviceArgs`]).

use std::error::Error;

use autoplace::ModelBuilder;
use autoplace::load;
use autoplace::machine::{Host, Machine};
use autoplace::memory::{ContextParams, Place, RopeScaling, TensorOverride};
use autoplace::plan::Request;

/// Rarely needed settings of a context.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "llama.cpp's settings")]
pub(crate) struct SettingArgs {
    /// Lets all sequences share one cache, instead of giving each sequence a part
    #[arg(long)]
    kv_unified: bool,
    /// Reads the file instead of mapping it
    #[arg(long)]
    no_mmap: bool,
    /// Keeps weights in the file's layout, instead of rearranging them for the CPU
    #[arg(long)]
    no_repack: bool,
    /// Uses the host, instead of a GPU, to compute prompts with weights that lie on the host
    #[arg(long)]
    no_op_offload: bool,
    /// RoPE scaling: none, linear, yarn, longrope [default: the model's]
    #[arg(long, value_name = "TYPE", value_parser = rope_scaling)]
    rope_scaling: Option<RopeScaling>,
    /// Base of RoPE's frequencies [default: the model's]
    #[arg(long, value_name = "F", value_parser = above_zero)]
    rope_freq_base: Option<f32>,
    /// Factor of RoPE's frequencies: 0.25 for four times the context
    #[arg(long, value_name = "F", value_parser = above_zero)]
    rope_freq_scale: Option<f32>,
    /// YaRN: the model's training context in tokens [default: the model's]
    #[arg(long, value_name = "N")]
    yarn_orig_ctx: Option<u32>,
    /// YaRN: share of extrapolation; 0 interpolates everything [default: the model's]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    yarn_ext_factor: Option<f32>,
    /// YaRN: factor of attention [default: the model's]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    yarn_attn_factor: Option<f32>,
    /// YaRN: rotations above which nothing is interpolated [default: the model's]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    yarn_beta_fast: Option<f32>,
    /// YaRN: rotations below which everything is interpolated [default: the model's]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    yarn_beta_slow: Option<f32>,
}

/// The distribution of the model over devices, by llama.cpp's flags. A setting that cannot be followed is an error.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "llama.cpp's settings")]
pub(crate) struct DeviceArgs {
    /// The GPUs to use, by their names in `devices`; `none` for the host alone [default: all]
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',')]
    device: Vec<String>,
    /// `none` uses one GPU: `--main-gpu`
    #[arg(long, value_name = "layer|none", value_parser = ["layer", "none"], hide_possible_values = true)]
    split_mode: Option<String>,
    /// The GPU that `--split-mode none` uses: its index among the machine's GPUs, or among those of `--device`
    /// [default: 0]
    #[arg(long, value_name = "INDEX")]
    main_gpu: Option<usize>,
    /// Proportions in which the GPUs share the layers: `3,1` [default: the fastest]
    #[arg(long, value_name = "N,...", value_parser = proportions)]
    tensor_split: Option<Proportions>,
    /// Moves the weights whose names match a pattern to another device than their layer's: `exps=CPU`,
    /// `blk\.1\.=CUDA1`; repeat for several
    #[arg(long, value_name = "PATTERN=DEVICE,...")]
    override_tensor: Vec<String>,
    /// All experts on the host
    #[arg(long)]
    cpu_moe: bool,
    /// The experts of the first N layers on the host
    #[arg(long, value_name = "N")]
    n_cpu_moe: Option<u32>,
    /// The dense feed-forward matrices of the first N layers on the host
    #[arg(long, value_name = "N")]
    n_cpu_ffn: Option<u32>,
}

/// Proportions of the layers, one for each GPU.
#[derive(Debug, Clone)]
struct Proportions(Vec<f32>);

/// common/common.h, `LLM_FFN_EXPS_REGEX`. `std::regex` and our regular expressions match the same names with it.
pub(crate) const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
/// common/common.h, `LLM_FFN_DENSE_REGEX`.
pub(crate) const DENSE: &str = r"\.ffn_(up|down|gate)\.";

impl SettingArgs {
    /// Puts these settings into the parameters.
    pub(crate) fn set(&self, params: &mut ContextParams) {
        params.kv_unified |= self.kv_unified;
        params.mmap &= !self.no_mmap;
        params.repack &= !self.no_repack;
        params.op_offload &= !self.no_op_offload;
        let rope = &mut params.rope;
        rope.scaling = self.rope_scaling.or(rope.scaling);
        rope.freq_base = self.rope_freq_base.or(rope.freq_base);
        rope.freq_scale = self.rope_freq_scale.or(rope.freq_scale);
        rope.yarn_orig_ctx = self.yarn_orig_ctx.filter(|&tokens| tokens > 0).or(rope.yarn_orig_ctx);
        // A negative number means that llama.cpp uses its own default.
        let said = |factor: Option<f32>| factor.filter(|&factor| factor >= 0.0);
        rope.yarn_ext_factor = said(self.yarn_ext_factor).or(rope.yarn_ext_factor);
        rope.yarn_attn_factor = said(self.yarn_attn_factor).or(rope.yarn_attn_factor);
        rope.yarn_beta_fast = said(self.yarn_beta_fast).or(rope.yarn_beta_fast);
        rope.yarn_beta_slow = said(self.yarn_beta_slow).or(rope.yarn_beta_slow);
    }
}

impl DeviceArgs {
    /// Sets up a load of this request on this machine, with these settings.
    ///
    /// # Errors
    ///
    /// The errors of [`keep`](Self::keep) and [`over`](Self::over), and the errors that occur when devices are
    /// detected.
    pub(crate) fn load(&self, builder: ModelBuilder, request: Request) -> Result<ModelBuilder, Box<dyn Error>> {
        // If no setting depends on the machine's devices, they are not detected here, because the load detects them
        // itself.
        let mut machine = if self.name_devices() { load::detect()? } else { Machine::new(Host::new(0)) };
        self.keep(&mut machine)?;
        let builder = builder.request(self.over(request, &machine)?);
        Ok(if self.name_devices() { builder.machine(machine) } else { builder })
    }

    /// Whether any of the settings depends on the machine's devices.
    fn name_devices(&self) -> bool {
        let is_elsewhere = |rule: &str| rule.rsplit_once('=').is_some_and(|(_, device)| device != "CPU");
        let mut rules = self.override_tensor.iter().flat_map(|rules| rules.split(','));
        !self.device.is_empty() || self.split_mode.as_deref() == Some("none") || rules.any(is_elsewhere)
    }

    /// Removes from the machine those GPUs that may not be used.
    ///
    /// # Errors
    ///
    /// An error if a device that was named does not exist.
    pub(crate) fn keep(&self, machine: &mut Machine) -> Result<(), String> {
        if !self.device.is_empty() && self.device != ["none"] {
            let mut kept = Vec::with_capacity(self.device.len());
            for name in &self.device {
                let index = index(machine, name)?;
                if kept.contains(&index) {
                    return Err(format!("--device names {name} twice"));
                }
                kept.push(index);
            }
            machine.gpus = kept.into_iter().map(|index| machine.gpus[index].clone()).collect();
        } else if !self.device.is_empty() {
            machine.gpus.clear();
        }
        match (self.split_mode.as_deref(), self.main_gpu) {
            (Some("none"), main) if !machine.gpus.is_empty() => {
                let (main, count) = (main.unwrap_or(0), machine.gpus.len());
                let gpu = machine.gpus.get(main).cloned();
                machine.gpus =
                    vec![gpu.ok_or_else(|| {
                        format!("--main-gpu is {main}, but the GPUs are numbered 0 to {}", count - 1)
                    })?];
                Ok(())
            }
            (Some("none"), _) | (_, None) => Ok(()),
            _ => Err("--main-gpu needs --split-mode none".to_owned()),
        }
    }

    /// Adds these settings to a request. Before this, [`keep`](Self::keep) must have been applied to the machine.
    ///
    /// # Errors
    ///
    /// An error for a rule without a pattern or without a device, and for a device that does not exist.
    pub(crate) fn over(&self, mut request: Request, machine: &Machine) -> Result<Request, String> {
        if let Some(Proportions(shares)) = &self.tensor_split {
            request.tensor_split.clone_from(shares);
        }
        let overrides = &mut request.overrides;
        for rule in self.override_tensor.iter().flat_map(|rules| rules.split(',')) {
            let Some((pattern, device)) = rule.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty()) else {
                return Err(format!("--override-tensor `{rule}` is not PATTERN=DEVICE, such as exps=CPU"));
            };
            let place = if device == "CPU" { Place::Host } else { Place::Gpu(index(machine, device)?) };
            overrides.push(TensorOverride::new(pattern, place));
        }
        if self.cpu_moe {
            overrides.push(TensorOverride::new(EXPERTS, Place::Host));
        }
        overrides.extend(first_blocks(self.n_cpu_moe, EXPERTS));
        overrides.extend(first_blocks(self.n_cpu_ffn, DENSE));
        Ok(request)
    }
}

/// Keeps these weights of the first blocks on the host. There is a single pattern for all blocks, because llama.cpp
/// compiles each pattern again for every tensor.
fn first_blocks(blocks: Option<u32>, weights: &str) -> Option<TensorOverride> {
    let blocks = blocks.filter(|&blocks| blocks > 0)?;
    // llama.cpp accepts at most 512 blocks (`LLAMA_MAX_LAYERS`), so further numbers would match nothing.
    let numbers: Vec<String> = (0..blocks.min(512)).map(|block| block.to_string()).collect();
    Some(TensorOverride::new(format!(r"blk\.({}){weights}", numbers.join("|")), Place::Host))
}

/// The index of the GPU with this name.
fn index(machine: &Machine, name: &str) -> Result<usize, String> {
    machine.gpu_named(name).map_err(|there| format!("there is no device {name}: {there}"))
}

/// Parses `--tensor-split` like common/arg.cpp: `3,1` or `3/1`.
fn proportions(text: &str) -> Result<Proportions, String> {
    let shares = text.split([',', '/']).filter(|share| !share.is_empty()).map(str::parse::<f32>);
    let shares: Vec<f32> = shares.collect::<Result<_, _>>().map_err(|_| "proportions are numbers, such as 3,1")?;
    let is_share = |share: &f32| share.is_finite() && *share >= 0.0;
    match shares.iter().all(is_share) && shares.iter().any(|&share| share > 0.0) {
        true => Ok(Proportions(shares)),
        false => Err("proportions are 0 or more, and one is above 0".to_owned()),
    }
}

fn rope_scaling(text: &str) -> Result<RopeScaling, String> {
    match text {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear),
        "yarn" => Ok(RopeScaling::Yarn),
        "longrope" => Ok(RopeScaling::LongRope),
        _ => Err("use none, linear, yarn or longrope".to_owned()),
    }
}

fn above_zero(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "write a number above 0".to_owned())
}
