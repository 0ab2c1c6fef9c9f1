//! Follows the depth of a loaded model's texts: adds up the time that the model loses in its present placement. The
//! rule itself belongs to the planner ([`DepthRule`]).

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::moves::LoadTimes;
use crate::plan::{DepthRule, DepthWork, Plan};

/// A move of a loaded model to its other placement, because of the depth of its texts. Its `Display` is one line of
/// plain words.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "moved after {tokens} live tokens from {before} to {after}, in {:.1} s: {:.1} s were lost there",
    time.as_secs_f64(), lost.as_secs_f64()
)]
#[non_exhaustive]
pub struct DepthMove {
    /// Live tokens of all texts at the move.
    pub tokens: u32,
    /// The placement before, in a few words.
    pub before: String,
    /// The placement after.
    pub after: String,
    /// Time that was lost before the move, compared with the placement after it. Zero if the model moved before a long
    /// prompt.
    pub lost: Duration,
    /// Time from saving the states to restoring them.
    pub time: Duration,
}

/// The two placements of a loaded model, and the time that was lost in the present placement.
#[derive(Debug, Default)]
pub(crate) struct DepthFollower {
    rule: Option<DepthRule>,
    /// Duration of the last move. This duration is used instead of the predicted one.
    last_move: Option<Duration>,
    /// When the page cache was last checked, and the time that the disk needs for the pages that were not in the cache
    /// then.
    cold: Option<(Instant, Duration)>,
    /// The times of the last load's stages.
    times: Option<LoadTimes>,
}

/// A prompt that is about to begin: its tokens, and the maximum tokens of its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptAhead {
    pub(crate) work: DepthWork,
    pub(crate) most_reply: u32,
}

impl DepthFollower {
    /// Replaces the pair of placements by this plan's pair, and resets the lost time. `load` is the time that the load
    /// by this plan took. Returns whether the plan has two placements.
    ///
    /// Until a move was measured, its expected time is the predicted time or the time of the load, whichever is
    /// shorter. A load reads the same file as a move does, but more slowly if the file was not in the page cache.
    pub(super) fn placed_by(&mut self, plan: &Plan, load: Duration, times: Option<LoadTimes>) -> bool {
        self.times = times;
        let rule = plan.by_depth.as_deref().map(DepthRule::new);
        self.rule = rule.map(|rule| {
            let predicted = rule.moving_seconds();
            rule.moving_takes(self.last_move.map_or(predicted.min(load.as_secs_f64()), |last| last.as_secs_f64()))
        });
        self.rule.is_some()
    }

    /// The times of the last load's stages.
    pub(super) fn times(&self) -> Option<LoadTimes> {
        self.times.clone()
    }

    /// Adds the work and the duration of a step.
    pub(crate) fn took(&mut self, work: DepthWork, time: Duration) {
        if let Some(rule) = &mut self.rule {
            rule.took(work, time.as_secs_f64());
        }
    }

    /// Records how long a move took.
    pub(crate) fn moved(&mut self, time: Duration) {
        self.last_move = Some(time);
        self.rule = self.rule.take().map(|rule| rule.moving_takes(time.as_secs_f64()));
    }

    /// The time that the model has lost since the last move because it was not in its other placement.
    pub(crate) fn lost(&self) -> Duration {
        let lost = self.rule.as_ref().map_or(0.0, DepthRule::lost);
        Duration::try_from_secs_f64(lost).unwrap_or_default()
    }

    /// The expected time of a move.
    pub(crate) fn expected(&self) -> Duration {
        let seconds = self.rule.as_ref().map_or(0.0, DepthRule::moving_seconds);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// Whether a move is due if it takes `more` in addition to the expected time.
    pub(super) fn is_due(&self, ahead: Option<PromptAhead>, more: Duration) -> bool {
        let Some(rule) = &self.rule else { return false };
        let seconds = rule.moving_seconds() + more.as_secs_f64();
        let is_due = |rule: &DepthRule| {
            rule.is_due() || ahead.is_some_and(|ahead| rule.is_due_before(ahead.work, ahead.most_reply))
        };
        if more.is_zero() { is_due(rule) } else { is_due(&rule.clone().moving_takes(seconds)) }
    }

    /// The time that the disk needs for the pages that are not in the page cache. `measure` computes this time by
    /// asking the system about every page. While the disk delays a move that is due, `measure` would be called before
    /// each token. So its result is reused for a tenth of the measured time.
    pub(super) fn cold(&mut self, measure: impl FnOnce() -> Duration) -> Duration {
        if let Some((_, cold)) = self.cold.filter(|(asked, cold)| asked.elapsed() < *cold / 10) {
            return cold;
        }
        let cold = measure();
        self.cold = Some((Instant::now(), cold));
        cold
    }

    /// Resets the lost time after a move that was not possible.
    pub(super) fn put_off(&mut self) {
        self.rule.iter_mut().for_each(DepthRule::put_off);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DepthFollower, PromptAhead};
    use crate::load::test_plan::plan;
    use crate::plan::{DepthWork, Plan};

    /// A plan whose other placement is twice as fast from 100 live tokens on. The predicted time of a move is 3 s.
    fn pair() -> Plan {
        let mut json = serde_json::to_value(plan()).unwrap();
        let other = json.clone();
        json["by_depth"] = serde_json::json!({
            "crossing": 100, "is_deeper": true, "plan": other, "moving_seconds": 3.0, "workload_seconds": 9.0,
            "seconds": [
                {"depth": 0, "token": [1.0, 2.0], "prompt_token": [0.1, 0.2]},
                {"depth": 100, "token": [2.0, 2.0], "prompt_token": [0.2, 0.2]},
                {"depth": 200, "token": [4.0, 2.0], "prompt_token": [0.4, 0.2]},
            ],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_move_costs_the_prediction_at_most_the_load_time_and_later_the_measured_time() {
        let seconds = Duration::from_secs;
        let lose = |follower: &mut DepthFollower, time| follower.took(DepthWork::token(200), time);
        let mut follower = DepthFollower::default();
        assert!(!follower.placed_by(&plan(), seconds(1), None) && !follower.is_due(None, Duration::ZERO));
        for (load, needed) in [(100, 6), (1, 2)] {
            assert!(follower.placed_by(&pair(), seconds(load), None));
            lose(&mut follower, seconds(needed) - Duration::from_millis(1));
            assert!(!follower.is_due(None, Duration::ZERO), "{load}");
            lose(&mut follower, Duration::from_millis(2));
            assert!(follower.is_due(None, Duration::ZERO) && !follower.is_due(None, seconds(1)), "{load}");
        }
        follower.moved(seconds(10));
        follower.placed_by(&pair(), seconds(1), None);
        lose(&mut follower, seconds(19));
        assert!(!follower.is_due(None, Duration::ZERO));
        lose(&mut follower, seconds(2));
        assert!(follower.is_due(None, Duration::ZERO));
        follower.put_off();
        assert!(!follower.is_due(None, Duration::ZERO) && follower.lost().is_zero());
    }

    #[test]
    fn the_page_cache_is_not_asked_again_before_each_token() {
        let mut follower = DepthFollower::default();
        let mut asked = 0;
        let mut cold = |cold| {
            follower.cold(|| {
                asked += 1;
                cold
            })
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(cold(Duration::ZERO), Duration::ZERO);
        // A result of zero is not reused.
        assert_eq!(cold(hour), hour);
        assert_eq!(cold(Duration::ZERO), hour);
        assert_eq!(asked, 2);
    }

    #[test]
    fn a_coming_prompt_counts_before_it_has_lost_time() {
        let mut follower = DepthFollower::default();
        follower.placed_by(&pair(), Duration::from_secs(100), None);
        let ahead = |tokens| PromptAhead { work: DepthWork::prompt(0, tokens), most_reply: 256 };
        assert!(!follower.is_due(Some(ahead(50)), Duration::ZERO));
        assert!(follower.is_due(Some(ahead(200)), Duration::ZERO));
    }
}
