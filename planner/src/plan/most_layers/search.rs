//! The search for the largest number of layers that fits, over anything that can say whether a number of layers does.
//!
//! More layers on the GPU mostly take more of it, but not always: a layer that leaves the host may free the buffer in
//! which the GPU borrowed its weights, and the last one frees the mask. So where asking is cheap (the estimate), every
//! number is tried; where it is not (a probe: 20 to 700 ms), the estimate says where to look.

/// The largest number of layers from 1 to `max` that fits: tries them all, from the largest.
pub fn largest_fitting(max: u32, mut fits: impl FnMut(u32) -> bool) -> Option<u32> {
    (1..=max).rev().find(|&n| fits(n))
}

/// The largest number of layers from 1 to `max` that fits, found with few questions near `start`.
///
/// Steps of 1, 1, 2, 4, ... go up from `start` while it fits, or down until it does, and the gap is halved. The answer
/// has been asked about, and so has the number above it, which does not fit, unless the answer is `max`. Where cost
/// does not grow with every layer there may be a larger answer further up: `hopeful` lists, largest first, the numbers
/// at which the caller has reason to look; those above the answer are tried too. A number may be asked about twice.
///
/// # Errors
///
/// The first error of `fits`.
pub fn refine<E>(
    start: u32,
    max: u32,
    hopeful: &[u32],
    mut fits: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Option<u32>, E> {
    if max == 0 {
        return Ok(None);
    }
    let start = start.clamp(1, max);
    // `low` fits (0: nothing does yet), `high` does not (max + 1: nothing is above).
    let (mut low, mut high) = (0, max + 1);
    // An estimate is mostly right or a layer short: the second step is one layer too, since overstepping
    // costs a probe more.
    let mut steps = [1, 1].into_iter().chain((1..).map(|n| 1 << n.min(31)));
    let mut step = || steps.next().unwrap_or(1_u32);
    if fits(start)? {
        low = start;
        while low < max {
            let next = low.saturating_add(step()).min(max);
            if !fits(next)? {
                high = next;
                break;
            }
            low = next;
        }
    } else {
        high = start;
        while high > 1 {
            let next = high.saturating_sub(step()).max(1);
            if fits(next)? {
                low = next;
                break;
            }
            high = next;
        }
    }
    while low > 0 && high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    for &n in hopeful.iter().filter(|&&n| n > high && n <= max) {
        if fits(n)? {
            low = n;
            // What was promised of the answer holds of this one too.
            while low < max && fits(low + 1)? {
                low += 1;
            }
            break;
        }
    }
    Ok((low > 0).then_some(low))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{largest_fitting, refine};

    /// A cost by table: index 0 is one layer.
    struct Table {
        bytes: Vec<u64>,
        budget: u64,
        asked: RefCell<Vec<u32>>,
    }

    impl Table {
        fn new(bytes: &[u64], budget: u64) -> Self {
            Self {
                bytes: bytes.to_vec(),
                budget,
                asked: RefCell::default(),
            }
        }

        fn max(&self) -> u32 {
            u32::try_from(self.bytes.len()).unwrap()
        }

        fn fits(&self, n: u32) -> bool {
            self.asked.borrow_mut().push(n);
            self.bytes[n as usize - 1] <= self.budget
        }

        fn refine(&self, start: u32, hopeful: &[u32]) -> Option<u32> {
            let fits = |n| Ok::<_, Infallible>(self.fits(n));
            let Ok(found) = refine(start, self.max(), hopeful, fits);
            found
        }
    }

    #[test]
    fn an_estimate_that_is_right_costs_two_questions() {
        let table = Table::new(&[10, 20, 30, 40, 50, 60], 45);
        assert_eq!(table.refine(4, &[]), Some(4));
        assert_eq!(*table.asked.borrow(), [4, 5]);
    }

    #[test]
    fn an_estimate_that_is_a_layer_short_costs_three() {
        let table = Table::new(&[10, 20, 30, 40, 50, 60], 45);
        assert_eq!(table.refine(3, &[]), Some(4));
        assert_eq!(*table.asked.borrow(), [3, 4, 5]);
    }

    #[test]
    fn a_full_offload_that_fits_costs_one() {
        let table = Table::new(&[10, 20, 30], 45);
        assert_eq!(table.refine(3, &[]), Some(3));
        assert_eq!(*table.asked.borrow(), [3]);
    }

    #[test]
    fn an_answer_beyond_a_hump_is_found_where_there_is_reason_to_look() {
        // The last layer frees what the one before it borrowed.
        let table = Table::new(&[10, 20, 30, 70, 40], 45);
        assert_eq!(table.refine(3, &[]), Some(3));
        assert_eq!(table.refine(3, &[5]), Some(5));
    }

    #[test]
    fn nothing_fits_is_none() {
        let table = Table::new(&[10, 20], 5);
        assert_eq!(table.refine(2, &[]), None);
        assert_eq!(largest_fitting(2, |n| table.fits(n)), None);
    }

    proptest! {
        #[test]
        fn on_a_growing_cost_it_equals_trying_them_all(
            steps in prop::collection::vec(0u64..100, 1..130),
            budget in 0u64..7000,
            start in 0u32..140,
        ) {
            let bytes: Vec<u64> = steps.iter().scan(0, |sum, step| { *sum += step; Some(*sum) }).collect();
            let table = Table::new(&bytes, budget);
            let all = largest_fitting(table.max(), |n| table.fits(n));
            table.asked.borrow_mut().clear();
            prop_assert_eq!(table.refine(start, &[]), all);
            prop_assert!(table.asked.borrow().len() <= 16);
        }

        #[test]
        fn the_answer_fits_and_the_one_above_was_seen_not_to(
            bytes in prop::collection::vec(0u64..100, 1..100),
            hopeful in prop::collection::btree_set(1u32..100, 0..4),
            budget in 0u64..100,
            start in 0u32..100,
        ) {
            let table = Table::new(&bytes, budget);
            let hopeful: Vec<u32> = hopeful.into_iter().rev().collect();
            if let Some(n) = table.refine(start, &hopeful) {
                prop_assert!(bytes[n as usize - 1] <= budget);
                let above_was_seen = table.asked.borrow().contains(&(n + 1));
                prop_assert!(n == table.max() || (above_was_seen && bytes[n as usize] > budget));
            }
        }
    }
}
