//! The account of loads in advance: what they have saved and what they have cost.
//!
//! In: each load in advance with the models that made room for it, and each request. Out: whether another one may be
//! made.
//!
//! A load in advance is a wager: if another request comes than the expected one, its model must be loaded again. A
//! wager that may lose much more than it may gain is only made with what earlier ones have gained, so that all of them
//! together do not make requests wait much longer than without them. After a loss the pool only watches, until what it
//! would have gained makes up for it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Up to this many times what it may gain, a wager may lose without earlier gains. Two models of the same size take
/// turns, and the times of their loads differ.
const EVEN: f64 = 1.5;

/// The most seconds of loss that must be made up for, so that a bad hour is forgotten some time.
const MAX_LOSS: f64 = 60.0;

/// What a plan to load in advance changes for the next request, if it is for one of these models.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Wager {
    /// The models that are loaded, or placed faster, and the seconds that a request for each takes less.
    pub gains: Vec<(String, f64)>,
    /// The models that are unloaded, or placed slower, and the seconds that a request for each takes more.
    pub losses: Vec<(String, f64)>,
    /// Whether the pool only watches what it would have gained or lost.
    pub is_watched: bool,
}

impl Wager {
    fn names(&self, name: &str) -> bool {
        self.gains.iter().chain(&self.losses).any(|(model, _)| model == name)
    }

    fn most(of: &[(String, f64)]) -> f64 {
        of.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max)
    }
}

/// The account of the wagers of a pool, in seconds of waiting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Wagers {
    /// What the wagers have gained, less what they have lost.
    balance: f64,
    /// For each model that a wager has loaded or placed faster, and that was not requested since: the seconds that it
    /// gains at most, and the time of the wager.
    gains: BTreeMap<String, (f64, Duration)>,
    /// For each model that a wager has unloaded or placed slower, and that was not requested since: the seconds that it
    /// loses.
    losses: BTreeMap<String, f64>,
    /// The wager that is watched.
    watched: Option<(Wager, Duration)>,
}

impl Wagers {
    /// Whether the pool may make this wager: it may lose about as much as it may gain at most, and all wagers together
    /// have not lost anything, or else it may lose at most what they have gained.
    pub(crate) fn allows(&self, wager: &Wager) -> bool {
        let (gain, loss) = (Wager::most(&wager.gains), Wager::most(&wager.losses));
        loss <= self.balance || (loss <= EVEN * gain && self.balance >= 0.0)
    }

    /// Records a wager that was made, or is watched, at this time.
    pub fn record(&mut self, wager: Wager, now: Duration) {
        if wager.is_watched {
            self.watched = Some((wager, now));
            return;
        }
        self.watched = None;
        // A later wager that undoes a part of an earlier one settles it.
        for (name, loss) in wager.losses {
            if self.gains.remove(&name).is_none() {
                self.losses.insert(name, loss);
            }
        }
        for (name, gain) in wager.gains {
            self.losses.remove(&name);
            self.gains.insert(name, (gain, now));
        }
    }

    /// Settles the wagers about a model that was requested now. `is_loaded`: whether it is loaded, or is being loaded.
    pub fn wanted(&mut self, name: &str, is_loaded: bool, now: Duration) {
        // A load that was not over when the request came has saved the time since its beginning.
        let saved = |gain: f64, since: Duration| now.saturating_sub(since).as_secs_f64().min(gain);
        if let Some((gain, since)) = self.gains.remove(name).filter(|_| is_loaded) {
            self.balance += saved(gain, since);
        }
        self.balance -= self.losses.remove(name).unwrap_or(0.0);
        // What was watched makes up for losses, and is no gain.
        if let Some((wager, since)) = self.watched.take_if(|(wager, _)| wager.names(name)) {
            let of = |models: &[(String, f64)]| models.iter().find(|(model, _)| model == name).map(|(_, time)| *time);
            let gained = of(&wager.gains).map_or(0.0, |gain| saved(gain, since));
            let lost = of(&wager.losses).unwrap_or(0.0);
            if self.balance < 0.0 {
                self.balance = (self.balance + gained - lost).min(0.0);
            }
        }
        self.balance = self.balance.max(-MAX_LOSS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wager(gain: (&str, f64), loss: (&str, f64)) -> Wager {
        let of = |(name, seconds): (&str, f64)| vec![(name.to_owned(), seconds)];
        Wager { gains: of(gain), losses: of(loss), is_watched: false }
    }

    #[test]
    fn a_wager_that_may_lose_more_than_it_may_gain_is_made_with_gains_alone() {
        let at = Duration::from_secs;
        let mut wagers = Wagers::default();
        let (safe, risky) = (wager(("large", 10.0), ("small", 2.0)), wager(("small", 2.0), ("large", 10.0)));
        assert!(wagers.allows(&safe) && !wagers.allows(&risky));
        // The load has taken its ten seconds before the request comes.
        wagers.record(safe.clone(), at(0));
        wagers.wanted("large", true, at(60));
        assert!(wagers.allows(&safe) && wagers.allows(&risky));
        // Of this load the request has waited for half.
        wagers.record(risky.clone(), at(100));
        wagers.wanted("small", true, at(101));
        assert_eq!(wagers.balance, 11.0);
        // Another request has come than expected.
        wagers.record(risky.clone(), at(200));
        wagers.wanted("large", false, at(201));
        assert_eq!(wagers.balance, 1.0);
        assert!(wagers.allows(&safe) && !wagers.allows(&risky));
    }

    #[test]
    fn after_a_loss_the_pool_watches_until_the_loss_would_be_made_up_for() {
        let at = Duration::from_secs;
        let mut wagers = Wagers::default();
        let safe = wager(("a", 3.0), ("b", 3.0));
        wagers.record(safe.clone(), at(0));
        wagers.wanted("b", false, at(10));
        assert!(!wagers.allows(&safe));
        let watched = Wager { is_watched: true, ..safe.clone() };
        // A request for a third model tells nothing.
        wagers.record(watched.clone(), at(20));
        wagers.wanted("c", true, at(25));
        wagers.wanted("a", false, at(30));
        assert!(wagers.allows(&safe));
        // Watching alone gains nothing.
        wagers.record(watched.clone(), at(40));
        wagers.wanted("a", false, at(50));
        assert_eq!(wagers.balance, 0.0);
        // After the next loss it takes two.
        wagers.record(safe.clone(), at(60));
        wagers.wanted("b", false, at(70));
        wagers.record(watched.clone(), at(80));
        wagers.wanted("b", true, at(90));
        for from in [100, 120] {
            assert!(!wagers.allows(&safe));
            wagers.record(watched.clone(), at(from));
            wagers.wanted("a", false, at(from + 10));
        }
        assert!(wagers.allows(&safe));
        // What is unloaded again before it was requested has neither gained nor lost anything.
        let mut wagers = Wagers::default();
        wagers.record(safe, at(0));
        wagers.record(wager(("b", 3.0), ("a", 3.0)), at(5));
        wagers.wanted("b", true, at(20));
        assert_eq!(wagers.balance, 3.0);
    }
}
