//! Chooses the projector for a model. In: headers, a machine and a request. Out: the best of the projectors that fit,
//! and the reason.

use autoplace_planner::Planner;
use autoplace_planner::gguf::Header;
use autoplace_planner::machine::Machine;
use autoplace_planner::memory::Companion;
use autoplace_planner::memory::companion::CompanionRole;
use autoplace_planner::plan::Request;
use autoplace_planner::profile::ModelProfile;
use serde::Serialize;

use crate::choice::{PlannedFile, bits_per_weight};

/// From this number of bits per weight on, a projector counts as F32. A file of F16 has some tensors of F32 too.
const F32_BITS: f64 = 24.0;

/// From this number of bits per weight on, no loss of quality can be noticed. Q8_0 has 8.5.
const FINE_BITS: f64 = 8.0;

/// With a projector of more bits, the model must keep at least this share of its speed. If it does not, that projector
/// is not chosen.
const AS_FAST: f64 = 0.98;

/// The projector that was chosen for a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProjectorChoice {
    /// The index of the file that was chosen; `None` if no projector belongs to this model, or none fits.
    pub chosen: Option<usize>,
    /// A sentence about why it was chosen, or why none was.
    pub reason: String,
}

/// A projector that can be loaded together with the model, and the placement of both.
struct Fitting {
    index: usize,
    bits: f64,
    /// The model's speed in tokens per second. If no speed is predicted, its number of layers on GPUs.
    speed: f64,
    /// The name of the GPU on which the projector is placed.
    gpu: Option<String>,
}

impl Fitting {
    /// The class of the projector's type. The lowest class is the best. F16, BF16 and Q8_0 come first, then smaller
    /// types. F32 is last, because it takes twice the memory of F16 without a noticeable gain.
    fn class(&self) -> u8 {
        match self.bits {
            bits if bits >= F32_BITS => 2,
            bits if bits >= FINE_BITS => 0,
            _ => 1,
        }
    }
}

/// Plans the model together with each projector, by arithmetic alone. Chooses the best of the projectors that fit.
/// Files of F16, BF16 and Q8_0 are preferred to smaller types, and F32 is the last choice. Within each of these
/// classes, a projector on a GPU is better than one on the host. Among these, one with which the model loses no speed
/// is better. Among these, the one with most bits per weight is the best.
pub fn choose_projector(
    projectors: &[PlannedFile],
    model: &Header,
    machine: &Machine,
    request: &Request,
) -> ProjectorChoice {
    let (mut fitting, mut refused) = (Vec::new(), None);
    for (index, file) in projectors.iter().enumerate() {
        match planned(index, file, model, machine, request) {
            Ok(planned) => fitting.push(planned),
            Err(why) => {
                refused.get_or_insert(format!("; {}: {why}", file.label));
            }
        }
    }
    let count = fitting.len();
    let Some(best) = best_of(fitting) else {
        let why = refused.unwrap_or_default();
        let reason = format!("none of {} projectors can be loaded{why}", projectors.len());
        return ProjectorChoice { chosen: None, reason };
    };
    let place = best.gpu.as_deref().unwrap_or("the host");
    let label = &projectors[best.index].label;
    let reason =
        format!("{label} is the projector, of {count} that go with the model: {:.1} bits, on {place}", best.bits);
    ProjectorChoice { chosen: Some(best.index), reason }
}

/// The best of the projectors that fit. If several are equal, the first of them.
fn best_of(mut fitting: Vec<Fitting>) -> Option<Fitting> {
    let class = fitting.iter().map(Fitting::class).min()?;
    fitting.retain(|projector| projector.class() == class);
    // On the host, an image takes a hundred times as long as on a GPU. So a plan puts a projector on a GPU if it fits
    // there.
    if fitting.iter().any(|projector| projector.gpu.is_some()) {
        fitting.retain(|projector| projector.gpu.is_some());
    }
    let fastest = fitting.iter().map(|projector| projector.speed).fold(0.0, f64::max);
    fitting.retain(|projector| projector.speed >= fastest * AS_FAST);
    fitting.into_iter().reduce(|best, next| if next.bits > best.bits { next } else { best })
}

/// Plans the model together with this projector.
fn planned(
    index: usize,
    file: &PlannedFile,
    model: &Header,
    machine: &Machine,
    request: &Request,
) -> Result<Fitting, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let companion = Companion::mmproj(&file.header).map_err(|error| words(&error))?;
    companion.compatible_with(model).map_err(|error| words(&error))?;
    let profile = ModelProfile::from_header(model).map_err(|error| words(&error))?;
    let plan = Planner::new(&profile, machine).request(request.clone()).beside(companion).plan();
    let plan = plan.map_err(|error| words(&error))?;
    let speed = plan.speed.as_ref().map_or(f64::from(plan.n_gpu_layers), |speed| speed.tokens_per_second);
    let beside = plan.companions.iter().find(|one| one.role == CompanionRole::Mmproj);
    let gpu = beside.and_then(|one| one.gpu.clone());
    Ok(Fitting { index, bits: bits_per_weight(&file.header), speed, gpu })
}

#[cfg(test)]
mod tests {
    use super::{Fitting, best_of};

    #[test]
    fn a_projector_is_on_a_card_then_the_model_loses_nothing_then_it_has_the_most_bits() {
        let best = |of: &[(f64, f64, bool)]| {
            let fitting = |(index, &(bits, speed, on_card)): (usize, &(f64, f64, bool))| Fitting {
                index,
                bits,
                speed,
                gpu: on_card.then(|| "card".to_owned()),
            };
            best_of(of.iter().enumerate().map(fitting).collect()).map(|best| best.index)
        };
        let (f32, f16, q8_0, q4_0) = (32.0, 16.1, 8.6, 4.6);
        assert_eq!(best(&[(f32, 50.0, true), (q8_0, 50.0, true), (f16, 50.0, true)]), Some(2));
        // With F16, either the model or the projector would not fit on the card.
        assert_eq!(best(&[(f16, 30.0, true), (q8_0, 50.0, true)]), Some(1));
        assert_eq!(best(&[(f16, 50.0, false), (q8_0, 40.0, true)]), Some(1));
        // Too few bits are worse than a slow model, and F32 is the worst.
        assert_eq!(best(&[(q4_0, 50.0, true), (q8_0, 10.0, false)]), Some(1));
        assert_eq!(best(&[(f32, 50.0, true), (q4_0, 10.0, false)]), Some(1));
        assert_eq!(best(&[(f32, 50.0, true)]), Some(0));
        assert_eq!(best(&[]), None);
    }
}
