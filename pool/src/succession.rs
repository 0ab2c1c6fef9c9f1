//! Which model is requested after which, and how soon, learned from the requests.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The share of its weight that a succession keeps when the same model is followed once more.
const FADE: f64 = 0.9;

/// Below this weight a succession is forgotten.
const FORGOTTEN: f64 = 0.01;

/// The weight of the newest time in a mean time.
const NEWEST: f64 = 0.2;

/// A weight beside the observed weights. Among successions, all that were not seen yet share it; among requests, all
/// models share it equally.
const DOUBT: f64 = 1.0;

/// The share of its weight that a request keeps in the models' shares when another one comes: about the last thirty
/// requests count.
const SHARE_FADE: f64 = 0.97;

/// The share of the evidence that is kept when another request comes.
const EVIDENCE_FADE: f64 = 0.95;

/// The evidence before the first request: that models follow each other counts as the better prediction at first.
const FIRST_EVIDENCE: f64 = 2.0;

/// The least probability of a request in the evidence, so that one surprise does not outweigh all other requests.
const SURPRISE: f64 = 1e-3;

/// For each model, the models that were requested after it, and its share of all requests. Times are durations since
/// any fixed moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Succession {
    after: BTreeMap<String, Vec<Follower>>,
    last: Option<(String, Duration)>,
    /// For each model, the sum of the weights of its requests.
    requests: BTreeMap<String, f64>,
    /// How much better the successions have predicted the last requests than the shares: the sum of the logarithms of
    /// the ratios of both probabilities.
    evidence: f64,
}

/// A model that was requested after another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Follower {
    name: String,
    weight: f64,
    /// Mean seconds between the two requests.
    gap: f64,
}

impl Succession {
    /// Counts a request that arrives at `now`.
    pub fn wanted(&mut self, name: &str, now: Duration) {
        let last = self.last.replace((name.to_owned(), now));
        if let Some((last, _)) = &last {
            let (follows, share) = (self.follows(last, name).max(SURPRISE), self.share(name).max(SURPRISE));
            self.evidence = EVIDENCE_FADE * self.evidence + (follows / share).ln();
        }
        self.requests.values_mut().for_each(|weight| *weight *= SHARE_FADE);
        self.requests.retain(|_, weight| *weight >= FORGOTTEN);
        *self.requests.entry(name.to_owned()).or_default() += 1.0;
        let Some((last, at)) = last else { return };
        let gap = now.saturating_sub(at).as_secs_f64();
        let followers = self.after.entry(last).or_default();
        followers.iter_mut().for_each(|follower| follower.weight *= FADE);
        followers.retain(|follower| follower.weight >= FORGOTTEN);
        match followers.iter_mut().find(|follower| follower.name == name) {
            Some(follower) => {
                follower.weight += 1.0;
                follower.gap += NEWEST * (gap - follower.gap);
            }
            None => followers.push(Follower { name: name.to_owned(), weight: 1.0, gap }),
        }
    }

    /// The model of the last request, and when it came.
    pub fn last(&self) -> Option<(&str, Duration)> {
        self.last.as_ref().map(|(name, at)| (name.as_str(), *at))
    }

    /// The probability, from 0 to 1, that the request after a request for `from` is for `to`. Requests may follow each
    /// other, or each may come by chance: the two probabilities are weighed by how well they would have predicted the
    /// last requests (Bayes' rule). A model that was not requested yet has the probability 0.
    pub fn chance(&self, from: &str, to: &str) -> f64 {
        let belief = 1.0 / (1.0 + (-FIRST_EVIDENCE - self.evidence).exp());
        belief * self.follows(from, to) + (1.0 - belief) * self.share(to)
    }

    /// The probability that `to` follows `from`. All successions that were not seen yet are together as likely as one
    /// that was seen once; each model has its share of all requests in this probability.
    fn follows(&self, from: &str, to: &str) -> f64 {
        let followers = self.after.get(from).map_or(&[][..], Vec::as_slice);
        let all: f64 = followers.iter().map(|follower| follower.weight).sum();
        let seen = followers.iter().find(|follower| follower.name == to).map_or(0.0, |follower| follower.weight);
        (seen + DOUBT * self.share(to)) / (all + DOUBT)
    }

    /// The share of this model in the last requests, whatever came before them.
    fn share(&self, name: &str) -> f64 {
        let Some(weight) = self.requests.get(name) else { return 0.0 };
        let all: f64 = self.requests.values().sum();
        (weight + DOUBT / self.requests.len() as f64) / (all + DOUBT)
    }

    /// Mean seconds from a request for `from` to a request for `to` that follows it. If no request for `to` has
    /// followed lately, the mean over all requests that have followed `from` or, without these, over all requests;
    /// `None` before the second request.
    pub fn gap(&self, from: &str, to: &str) -> Option<f64> {
        let followers = self.after.get(from).map_or(&[][..], Vec::as_slice);
        if let Some(follower) = followers.iter().find(|follower| follower.name == to) {
            return Some(follower.gap);
        }
        let any =
            if followers.is_empty() { self.after.values().flatten().collect() } else { Vec::from_iter(followers) };
        let all: f64 = any.iter().map(|follower| follower.weight).sum();
        (all > 0.0).then(|| any.iter().map(|follower| follower.weight * follower.gap).sum::<f64>() / all)
    }
}

/// A load of `load` seconds begins now, and a request comes after about `gap` seconds. Returns for how many seconds of
/// the load the request is expected to wait. The time until the request is assumed to be exponentially distributed, so
/// some requests come sooner.
pub(crate) fn exposed(load: f64, gap: f64) -> f64 {
    if gap <= 0.0 {
        return load;
    }
    (load - gap * (1.0 - (-load / gap).exp())).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_learned_and_forgotten() {
        let mut seen = Succession::default();
        let at = Duration::from_secs;
        assert_eq!((seen.last(), seen.chance("a", "b"), seen.gap("a", "b")), (None, 0.0, None));
        for turn in 0..10 {
            seen.wanted("a", at(100 * turn));
            seen.wanted("b", at(100 * turn + 20));
        }
        assert_eq!(seen.last(), Some(("b", at(920))));
        assert!(seen.chance("a", "b") > 0.9 && seen.chance("a", "a") < 0.1);
        // Neither `b` nor `c` has followed `b` yet: their gap is the mean gap of the models that have.
        let gaps = [("a", "b"), ("b", "a"), ("b", "b"), ("b", "c")].map(|(from, to)| seen.gap(from, to));
        assert_eq!(gaps, [Some(20.0), Some(80.0), Some(80.0), Some(80.0)]);
        assert_eq!(seen.gap("c", "a").map(f64::round), Some(49.0));
        (0..60).for_each(|turn| seen.wanted("a", at(2000 + turn)));
        assert!(seen.chance("a", "b") < 0.05 && seen.chance("a", "a") > 0.9);
        // A time before the last request counts as the same time.
        seen.wanted("b", at(0));
        assert_eq!(seen.gap("a", "b"), Some(16.0));
    }

    #[test]
    fn models_that_follow_no_order_are_as_likely_after_each_other_as_at_all() {
        let mut seen = Succession::default();
        let mut number = 1_u32;
        let (mut far, mut far_by_successions) = (0.0, 0.0);
        for turn in 0..1000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seen.wanted(["a", "b", "c"][(number >> 16) as usize % 3], Duration::from_secs(turn));
            let (last, _) = seen.last().unwrap();
            if turn < 100 {
                continue;
            }
            let chances = ["a", "b", "c"].map(|to| seen.chance(last, to));
            assert!((chances.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            far += chances.iter().map(|chance| (chance - 1.0 / 3.0).abs()).sum::<f64>();
            far_by_successions +=
                ["a", "b", "c"].map(|to| (seen.follows(last, to) - 1.0 / 3.0).abs()).iter().sum::<f64>();
        }
        // The few requests that have followed each model lately are farther from a third.
        assert!(far < 0.9 * far_by_successions, "{far} and {far_by_successions}");
        // A model that was not requested yet is never expected.
        assert_eq!((seen.chance("a", "d"), seen.share("d")), (0.0, 0.0));
        // Once they do follow each other, this is expected again.
        for turn in 0..60 {
            seen.wanted(["a", "b", "c"][turn % 3], Duration::from_secs(1000 + turn as u64));
        }
        assert!(seen.chance("a", "b") > 0.8, "{}", seen.chance("a", "b"));
    }

    #[test]
    fn a_request_that_comes_late_sees_nothing_of_a_load() {
        assert_eq!((exposed(10.0, 0.0), exposed(10.0, -3.0)), (10.0, 10.0));
        assert!(exposed(10.0, 1000.0) < 0.1);
        assert!((3.0..4.0).contains(&exposed(10.0, 10.0)), "{}", exposed(10.0, 10.0));
    }
}
