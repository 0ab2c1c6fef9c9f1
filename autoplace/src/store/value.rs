//! The value of a piece: the seconds that it saves, for each byte that it takes.

/// Maximum number of uses that count. Because of this limit, a beginning that was popular long ago can be evicted.
const MAX_USES: u32 = 15;

/// The known facts about the texts of a root.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Root {
    /// Seconds to compute a token of a prompt; `None` before the first measurement.
    pub(super) seconds_per_token: Option<f64>,
    /// Whether rows can be restored only together with a rest.
    pub(super) needs_rest: bool,
}

/// How a piece was used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uses {
    pub(super) times: u32,
    /// The store's clock at the last use. The clock counts restored texts, additions, and files that were found.
    pub(super) last: u64,
}

impl Uses {
    /// Expected savings: the seconds to compute `tokens` tokens again, per byte, multiplied by the number of uses so
    /// far, and divided by the time since the last use.
    pub(super) fn value(self, root: Root, tokens: usize, bytes: u64, now: u64) -> f64 {
        // Before a measurement all roots cost the same.
        let seconds = tokens as f64 * root.seconds_per_token.unwrap_or(1e-3);
        let times = f64::from(1 + self.times.min(MAX_USES));
        seconds * times / bytes.max(1) as f64 / (1 + now.saturating_sub(self.last)) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Root, Uses};

    #[test]
    fn what_takes_longer_to_compute_or_is_used_more_or_later_is_worth_more() {
        let slow = Root { seconds_per_token: Some(0.1), needs_rest: false };
        let fast = Root { seconds_per_token: Some(0.001), needs_rest: false };
        let once = Uses { times: 0, last: 5 };
        let value = |uses: Uses, root, bytes| uses.value(root, 64, bytes, 10);
        assert!(value(once, slow, 1000) > value(once, fast, 1000));
        assert!(value(once, slow, 1000) > value(once, slow, 2000));
        assert!(value(Uses { times: 3, last: 5 }, slow, 1000) > value(once, slow, 1000));
        assert!(value(Uses { times: 0, last: 9 }, slow, 1000) > value(once, slow, 1000));
    }
}
