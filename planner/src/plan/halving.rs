//! Binary search over a monotone condition.

/// The smallest number in `low..=last` for which `holds` returns true. `holds` must be monotone, and true at `last`.
pub(super) fn least_that(low: u32, last: u32, mut holds: impl FnMut(u32) -> bool) -> u32 {
    let (mut low, mut high) = (low, last);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}
