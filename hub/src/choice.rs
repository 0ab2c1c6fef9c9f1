//! Chooses one of a model's files for a machine. In: headers, a machine, a request and a preference. Out: a row for
//! each file, the best file, and the reason for the choice.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use autoplace_planner::Planner;
use autoplace_planner::gguf::{Header, TensorType};
use autoplace_planner::machine::Machine;
use autoplace_planner::plan::Request;
use autoplace_planner::plan::speed::Basis;
use autoplace_planner::profile::{ModelProfile, Quantisation};
use serde::Serialize;

use crate::name::cut;

/// A speed in tokens per second at which reading is comfortable. It is the minimum in [`Preference::default`].
const READABLE: f64 = 20.0;

/// The minimum number of bits per weight of a file that counts as `Q4`. IQ4_XS has 4.29, MXFP4 4.25 and Q3_K_L 4.20
/// (planner/src/profile/quantisation/mod.rs).
const FOUR_BITS: f64 = 4.24;

/// A file that can be chosen. It contains a whole model, or it stands for all shards of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PlannedFile {
    /// The name that the table shows.
    pub label: String,
    /// The quantisation in the name of the file; `None` if there is none.
    pub quant: Option<String>,
    /// The header. It was read from files, or parsed from the first bytes of files ([`Header::parse_shards`]).
    pub header: Header,
}

impl PlannedFile {
    /// A file with this label.
    pub fn new(label: impl Into<String>, quant: Option<String>, header: Header) -> Self {
        Self { label: label.into(), quant, header }
    }
}

/// The rule by which one of the files is chosen. If two files meet a preference equally well, the one with more bits
/// per weight is better. If they also have the same number of bits, the faster one is better.
///
/// As text, a preference is written as `auto`, `fastest:Q4`, `fastest:4.5`, `best:20` or `fits`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub enum Preference {
    /// The file with the best quality of those that generate at least 20 tokens per second. If no file is that fast,
    /// the fastest file with at least 4 bits per weight. If there is no such file either, the fastest file.
    #[default]
    Auto,
    /// The fastest file with at least this many bits per weight. The bits are a mean over the matrices of all blocks.
    FastestAtLeast {
        /// Bits per weight; for example, Q4_K_M has 4.8.
        bits: f64,
    },
    /// The file with the best quality of those that have at least this speed.
    BestAtLeast {
        /// Tokens per second. The speed is the predicted one, over the reply of the workload.
        tokens_per_second: f64,
    },
    /// The file with the best quality of those whose layers all fit on GPUs.
    FitsWholly,
}

/// A text that is not a preference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid preference: write auto, fastest:Q4, fastest:4.5, best:20 (tokens per second) or fits")]
pub struct PreferenceError(String);

impl FromStr for Preference {
    type Err = PreferenceError;

    fn from_str(text: &str) -> Result<Self, PreferenceError> {
        let (kind, least) = cut(text, ':');
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let preference = match (kind, least) {
            ("auto", None) => Some(Self::Auto),
            ("fits", None) => Some(Self::FitsWholly),
            ("best", Some(least)) => number(least).map(|tokens_per_second| Self::BestAtLeast { tokens_per_second }),
            ("fastest", least) => {
                let bits = least.map_or(Some(FOUR_BITS), |least| number(least).or_else(|| bits_of(least)));
                bits.map(|bits| Self::FastestAtLeast { bits })
            }
            _ => None,
        };
        preference.ok_or_else(|| PreferenceError(text.to_owned()))
    }
}

/// The minimum number of bits per weight that a quantisation with this name has.
fn bits_of(name: &str) -> Option<f64> {
    let name = name.to_ascii_uppercase();
    if let Some(known) = Quantisation::ALL.into_iter().find(|known| known.name() == name) {
        // The bits of published files differ from the nominal bits by at most half a percent.
        return Some(known.types().2 * 0.99);
    }
    match &name[..] {
        "F32" => Some(32.0),
        "F16" | "BF16" => Some(16.0),
        _ => match name.strip_prefix('Q')?.parse::<u8>().ok()? {
            bits @ 1..=3 => Some(f64::from(bits)),
            bits @ 4..=8 => Some(f64::from(bits) + FOUR_BITS.fract()),
            _ => None,
        },
    }
}

/// All files with their plans for a machine, and the best file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// One row for each file, in the order of the files.
    pub rows: Vec<Row>,
    /// The index of the best file; `None` if no file meets the preference.
    pub chosen: Option<usize>,
    /// A sentence about why this file was chosen, or why none was.
    pub reason: String,
}

/// The result of planning one file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The file's label.
    pub label: String,
    /// The quantisation. It comes from the name or, if the name has none, from the header.
    pub quant: Option<String>,
    /// The bytes of all of the model's files together.
    pub bytes: u64,
    /// Bits per weight: the mean over the matrices of all blocks. More bits mean better quality.
    pub bits_per_weight: f64,
    /// The placement, or the reason why there is none.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The placement, found by arithmetic alone. A load asks llama.cpp too, and its placement may differ by a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The model can be loaded with this placement.
    Placed(Placed),
    /// The model cannot be loaded, for this reason.
    Refused(String),
}

/// The placement of one file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Placed {
    /// The number of layers on GPUs, counted from the output layer backwards.
    pub n_gpu_layers: u32,
    /// The number of all layers, including the output layer.
    pub layers: u32,
    /// Whether all weights that can be on a GPU are on one.
    pub full_offload: bool,
    /// The number of blocks on GPUs of which a part stays on the host.
    pub split_blocks: u32,
    /// The predicted speed of generation in tokens per second, for the workload; `None` for embeddings.
    pub tokens_per_second: Option<f64>,
    /// The basis of the prediction.
    pub basis: Option<Basis>,
}

impl Row {
    /// Plans a file for a machine, by arithmetic alone.
    pub fn new(file: &PlannedFile, machine: &Machine, request: &Request) -> Self {
        let header = &file.header;
        let profile = match header.architecture() {
            Ok("clip") => Err("a projector (mmproj), which goes beside a model".to_owned()),
            _ => ModelProfile::from_header(header).map_err(|error| error.to_string()),
        };
        let file_type = profile.as_ref().ok().and_then(|profile| profile.file_type);
        let placed = profile.and_then(|profile| placed(&profile, machine, request));
        Self {
            label: file.label.clone(),
            quant: file.quant.clone().or_else(|| file_type.map(str::to_owned)),
            bytes: header.file_bytes(),
            bits_per_weight: bits_per_weight(header),
            outcome: placed.map_or_else(Outcome::Refused, Outcome::Placed),
        }
    }

    /// The placement; `None` if the model cannot be loaded.
    pub fn placed(&self) -> Option<&Placed> {
        match &self.outcome {
            Outcome::Placed(placed) => Some(placed),
            Outcome::Refused(_) => None,
        }
    }

    /// Whether some part of the model stays on the host.
    fn is_partly_on_host(&self) -> bool {
        self.placed().is_some_and(|placed| !placed.full_offload)
    }

    /// Tokens per second; 0 if no speed was predicted.
    fn speed(&self) -> f64 {
        self.placed().and_then(|placed| placed.tokens_per_second).unwrap_or(0.0)
    }
}

fn placed(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Placed, String> {
    let plan = Planner::new(profile, machine).request(request.clone()).plan();
    let plan = plan.map_err(|error| error.to_string())?;
    Ok(Placed {
        n_gpu_layers: plan.n_gpu_layers,
        layers: plan.layers(),
        full_offload: plan.full_offload,
        split_blocks: plan.split_blocks,
        tokens_per_second: plan.speed.as_ref().map(|speed| speed.tokens_per_second),
        basis: plan.speed.as_ref().map(|speed| speed.basis),
    })
}

/// Bits per weight of the matrices of all blocks. If there are no blocks, those of all tensors.
pub(crate) fn bits_per_weight(header: &Header) -> f64 {
    let bits = |of_blocks: bool| {
        let tensors =
            header.tensors().filter(|tensor| !of_blocks || tensor.name().starts_with("blk.") && tensor.n_dims() > 1);
        let (bytes, elements) = tensors.fold((0.0, 0.0), |(bytes, elements), tensor| {
            (bytes + tensor.bytes() as f64, elements + tensor.elements() as f64)
        });
        (elements > 0.0).then(|| bytes * 8.0 / elements)
    };
    bits(true).or_else(|| bits(false)).unwrap_or(0.0)
}

/// Plans each file for a machine, and picks the file that meets the preference best. The plans are made by arithmetic
/// alone. So a plan takes only milliseconds, and is always the same.
pub fn choose(files: &[PlannedFile], machine: &Machine, request: &Request, preference: Preference) -> Choice {
    let rows = files.iter().map(|file| Row::new(file, machine, request)).collect();
    decide(rows, preference)
}

/// Like [`choose`], but with measured rates of the host. A file may stay partly on the host, and the rate for one of
/// its types of weights may not be known. If so, `measure` is called once. It gets all types without a rate, each with
/// a flag that says whether its matrices are those of experts. It returns the machine, with the rates that it was able
/// to measure.
pub fn choose_measured(
    files: &[PlannedFile],
    machine: &Machine,
    request: &Request,
    preference: Preference,
    measure: impl FnOnce(Machine, &[(TensorType, bool)]) -> Machine,
) -> Choice {
    let choice = choose(files, machine, request, preference);
    let types = unmeasured(files.iter().zip(&choice.rows), machine);
    if types.is_empty() {
        return choice;
    }
    choose(files, &measure(machine.clone(), &types), request, preference)
}

/// From this size in bytes on, a model's speed matters. Smaller models are fast wherever they are placed.
const MIN_MODEL: u64 = 64 << 20;

/// In the files that would stay partly on the host, the types of weights for which the host's rate is not known. The
/// `bool` is true for the matrices of experts. Files below 64 MiB are skipped, because they are fast anyway.
pub fn unmeasured<'a>(
    rows: impl IntoIterator<Item = (&'a PlannedFile, &'a Row)>,
    machine: &Machine,
) -> Vec<(TensorType, bool)> {
    let on_host = rows.into_iter().filter(|(_, row)| row.bytes >= MIN_MODEL && row.is_partly_on_host());
    let profiles = on_host.filter_map(|(file, _)| ModelProfile::from_header(&file.header).ok());
    let types: BTreeSet<_> = profiles.flat_map(|profile| profile.weights.matrix_types()).collect();
    let rates = machine.host.rates.as_ref();
    types.into_iter().filter(|&kind| !rates.is_some_and(|rates| rates.has_weights(kind))).collect()
}

fn decide(rows: Vec<Row>, preference: Preference) -> Choice {
    let readable = Preference::BestAtLeast { tokens_per_second: READABLE };
    // The preferences are tried in this order.
    let preferences = match preference {
        Preference::Auto => {
            vec![readable, Preference::FastestAtLeast { bits: FOUR_BITS }, Preference::FastestAtLeast { bits: 0.0 }]
        }
        preference => vec![preference],
    };
    let picked = preferences.iter().enumerate().find_map(|(at, preference)| Some((at, pick(&rows, *preference)?)));
    let reason = match picked {
        Some((at, index)) => because(&rows, index, preferences[at], &preferences[..at]),
        None if rows.iter().all(|row| row.placed().is_none()) => {
            let smallest = rows.iter().min_by_key(|row| row.bytes);
            let why = smallest.map(|row| match &row.outcome {
                Outcome::Refused(why) => format!("; {}: {why}", row.label),
                Outcome::Placed(_) => String::new(),
            });
            format!("none of {} can be placed on this machine{}", rows.len(), why.unwrap_or_default())
        }
        None => format!("none {preference}"),
    };
    Choice { chosen: picked.map(|(_, index)| index), reason, rows }
}

/// The index of the row that meets a preference best. If several rows are equal, the index of the first of them.
fn pick(rows: &[Row], preference: Preference) -> Option<usize> {
    let met = rows.iter().enumerate().filter(|(_, row)| meets(row, preference));
    let better = |a: &Row, b: &Row| -> Ordering {
        let quality = a.bits_per_weight.total_cmp(&b.bits_per_weight);
        let speed = a.speed().total_cmp(&b.speed());
        match preference {
            Preference::FastestAtLeast { .. } => speed.then(quality),
            _ => quality.then(speed),
        }
    };
    met.reduce(|best, next| if better(next.1, best.1).is_gt() { next } else { best }).map(|(index, _)| index)
}

fn meets(row: &Row, preference: Preference) -> bool {
    let Some(placed) = row.placed() else { return false };
    match preference {
        Preference::FastestAtLeast { bits } => row.bits_per_weight >= bits,
        Preference::BestAtLeast { tokens_per_second } => row.speed() >= tokens_per_second,
        Preference::FitsWholly => placed.full_offload,
        Preference::Auto => true,
    }
}

/// A sentence about why a row was picked, and which of the earlier preferences no row met.
fn because(rows: &[Row], index: usize, preference: Preference, before: &[Preference]) -> String {
    let row = &rows[index];
    let met = rows.iter().filter(|row| meets(row, preference)).count();
    let (bits, speed) = (row.bits_per_weight, row.speed());
    let mut reason: String = before.iter().map(|preference| format!("none {preference}; ")).collect();
    reason += &match preference {
        Preference::FastestAtLeast { bits: 0.0 } => format!("{} is the fastest of {met}", row.label),
        Preference::FastestAtLeast { .. } => format!("{} is the fastest of {met} that each {preference}", row.label),
        _ => format!("{} has the most bits per weight of {met} that each {preference}", row.label),
    };
    reason + &format!(": {bits:.1} bits, {speed:.1} tok/s predicted") + &smaller_but_slower(rows, row)
}

/// If one predicted speed is this many times another, it counts as notably faster. Smaller differences are noise.
const NOTABLY: f64 = 1.1;

/// A remark about a file that is smaller than the chosen one, but notably slower. If there are several, it is about the
/// slowest. On this host, it takes more time to decode the types of that file than its smaller size saves.
fn smaller_but_slower(rows: &[Row], chosen: &Row) -> String {
    let is_slower = |row: &&Row| row.speed() > 0.0 && row.speed() * NOTABLY <= chosen.speed();
    let smaller = rows.iter().filter(|row| row.bytes < chosen.bytes && row.is_partly_on_host()).filter(is_slower);
    let slowest = smaller.min_by(|a, b| a.speed().total_cmp(&b.speed()));
    slowest.map_or_else(String::new, |row| {
        format!(
            "; {} is smaller, but takes {:.1} times as long on this machine",
            row.label,
            chosen.speed() / row.speed()
        )
    })
}

impl fmt::Display for Preference {
    /// Writes what is true of a file that meets the preference, such as `reaches 20 tok/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("can be placed"),
            Self::FastestAtLeast { bits } => write!(f, "has {bits:.2} bits per weight or more"),
            Self::BestAtLeast { tokens_per_second } => write!(f, "reaches {tokens_per_second} tok/s"),
            Self::FitsWholly => f.write_str("fits on the GPUs with every layer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Placed, Preference, Row, decide};

    fn row(label: &str, bits_per_weight: f64, tokens_per_second: f64, full_offload: bool) -> Row {
        let (n_gpu_layers, split_blocks, basis) = (1, 0, None);
        let tokens_per_second = Some(tokens_per_second);
        let placed = Placed { n_gpu_layers, layers: 33, full_offload, split_blocks, tokens_per_second, basis };
        let outcome = Outcome::Placed(placed);
        Row { label: label.to_owned(), quant: None, bytes: 1, bits_per_weight, outcome }
    }

    #[test]
    fn a_smaller_file_that_is_slower_on_this_host_is_not_taken_and_that_is_said() {
        let of = |label, bits, speed, bytes| Row { bytes, ..row(label, bits, speed, false) };
        let rows = [of("Q4_K_M", 4.8, 9.0, 50), of("IQ4_XS", 4.3, 4.8, 45), of("Q4_0", 4.5, 8.9, 47)];
        let choice = decide(rows.to_vec(), Preference::Auto);
        assert_eq!(choice.chosen, Some(0));
        assert!(
            choice.reason.ends_with("tok/s predicted; IQ4_XS is smaller, but takes 1.9 times as long on this machine"),
            "{}",
            choice.reason
        );
    }

    #[test]
    fn each_preference_takes_the_file_that_it_describes_and_says_why() {
        let mut refused = row("F16", 16.0, 0.0, false);
        refused.outcome = Outcome::Refused("it does not fit".to_owned());
        let rows = [
            refused,
            row("Q8_0", 8.5, 6.0, false),
            row("Q6_K", 6.6, 21.0, false),
            row("Q4_K_M", 4.8, 60.0, true),
            row("IQ4_XS", 4.3, 60.0, true),
            row("Q2_K", 2.9, 90.0, true),
        ];
        // If no file is fast, the fastest one with four bits is chosen. If no file has four bits, the fastest of all is
        // chosen.
        let slow = [row("Q8_0", 8.5, 2.0, false), row("Q4_K_M", 4.8, 4.0, false), row("Q2_K", 2.9, 7.0, false)];
        let most = "Q6_K has the most bits per weight of 4 that each reaches 20 tok/s: 6.6 bits, 21.0 tok/s predicted";
        let four_bits = "none reaches 20 tok/s; Q4_K_M is the fastest of 2 that each has 4.24 bits per weight or more: \
                         4.8 bits, 4.0 tok/s predicted";
        let fastest = "none reaches 20 tok/s; none has 4.24 bits per weight or more; Q2_K is the fastest of 1: 2.9 bits, \
                       7.0 tok/s predicted";
        for (rows, preference, label, reason) in [
            (&rows[..], "auto", Some("Q6_K"), most),
            (&rows, "best:20", Some("Q6_K"), most),
            (&rows, "best:22", Some("Q4_K_M"), ""),
            (&rows, "best:0", Some("Q8_0"), ""),
            (&rows, "fastest", Some("Q4_K_M"), ""),
            (&rows, "fastest:Q4_K_M", Some("Q4_K_M"), ""),
            (&rows, "fits", Some("Q4_K_M"), ""),
            (&rows, "best:100", None, "none reaches 100 tok/s"),
            (&rows[..1], "auto", None, "none of 1 can be placed on this machine; F16: it does not fit"),
            (&[], "auto", None, "none of 0 can be placed on this machine"),
            (&slow, "auto", Some("Q4_K_M"), four_bits),
            (&slow[2..], "auto", Some("Q2_K"), fastest),
        ] {
            let choice = decide(rows.to_vec(), preference.parse().unwrap());
            assert_eq!(choice.chosen.map(|index| &*choice.rows[index].label), label, "{preference}");
            assert!(reason.is_empty() || choice.reason == reason, "{preference}: {}", choice.reason);
        }
    }

    #[test]
    fn an_invalid_preference_is_an_error_that_says_how_to_write_one() {
        for text in ["", "best", "best:x", "best:-1", "best:inf", "fastest:", "fastest:Q9", "fits:1", "quick"] {
            let error = text.parse::<Preference>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a valid preference: write auto")), "{error}");
        }
    }
}
