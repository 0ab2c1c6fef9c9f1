//! Decides whether a loaded model moves to its other placement: the rule must ask for it, the other placement must fit,
//! and the file must be cached and unchanged.

use std::time::Duration;

use super::depth::PromptAhead;
use super::model::Model;
use super::moves::cached_bytes;
use crate::machine::DiskRate;
use crate::plan::Plan;

/// Maximum time that the disk may need during a move for pages that are not in the page cache. A longer move is not
/// begun.
const MAX_COLD: Duration = Duration::from_secs(60);

impl Model {
    /// The other placement, if the rule says that the model should move now and the move is possible. `ahead` is the
    /// prompt that begins with the next step, if there is one.
    pub(crate) fn due_for_depth(&self, ahead: Option<PromptAhead>) -> Option<Plan> {
        let counters = self.counters();
        if !counters.depth()?.is_due(ahead, Duration::ZERO) {
            return None;
        }
        let other = self.placement().other()?;
        let cold = counters.depth()?.cold(|| self.cold());
        let obstacle = match cold {
            cold if cold > MAX_COLD => {
                let seconds = cold.as_secs_f64();
                Some(format!("the file is no longer cached, and reading it takes {seconds:.0} s"))
            }
            // The lost time must also cover the time for reading from the disk.
            cold if !counters.depth()?.is_due(ahead, cold) => return None,
            // The model cannot be loaded again from a file that was replaced meanwhile.
            _ => self.check_file().err().map(|error| error.to_string()).or_else(|| self.without_room(&other)),
        };
        let Some(obstacle) = obstacle else { return Some(other) };
        tracing::info!(target: "autoplace::generate", "the model does not follow the depth of its text: {obstacle}");
        counters.depth()?.put_off();
        None
    }

    /// Time that the disk needs for the pages of the model's files that are not in the page cache. Zero if the system
    /// does not report the pages.
    fn cold(&self) -> Duration {
        let Ok(header) = self.header() else { return Duration::ZERO };
        let (bytes, Some(cached)) = cached_bytes(header) else { return Duration::ZERO };
        let (uncached, machine) = (bytes.saturating_sub(cached), self.machine());
        if uncached == 0 {
            return Duration::ZERO;
        }
        let measured = self.options().move_rates(&machine, bytes).cold_seconds(uncached);
        let rate = machine.host.disk.unwrap_or(DiskRate::UNKNOWN).bytes_per_second.max(1);
        let seconds = measured.unwrap_or(uncached as f64 / rate as f64);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// The reason why a plan would not fit if the model were released now; `None` if it would fit.
    fn without_room(&self, plan: &Plan) -> Option<String> {
        let machine = match self.machine_once_released() {
            Ok(machine) => machine,
            Err(error) => return Some(error.to_string()),
        };
        let changes: Vec<String> = plan.changes(&machine).iter().map(ToString::to_string).collect();
        (!changes.is_empty()).then(|| changes.join("; "))
    }
}
