//! Binary search for a condition that, where it holds for a number, holds for all above it.

/// The least of these numbers for which the condition holds. It must hold for the last one, and for all after one for
/// which it holds.
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
