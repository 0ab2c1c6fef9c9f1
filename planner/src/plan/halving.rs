//! Searches by halving, where what holds for a number holds for all above it.

/// The least of these numbers that holds, the last one of which does: what holds for one holds for all after it.
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
