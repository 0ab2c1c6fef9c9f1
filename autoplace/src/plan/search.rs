//! The search for the largest number of layers that fits, over anything that can say what a number of layers costs.
//!
//! More layers on the GPU mostly take more of it, but not always: a layer that leaves the host may free the buffer in which the
//! GPU borrowed its weights, and the last one frees the mask. So where a cost is cheap (the estimate), every number is tried;
//! where it is not (a probe: 20 to 700 ms), the estimate says where to look.

use std::collections::BTreeMap;

use crate::memory::{Estimate, Footprints};

/// Something that says what a number of layers on the GPU costs: the estimate, or a probe.
pub trait Cost {
    /// What can go wrong.
    type Error;

    /// Bytes per device with `n_gpu_layers` layers on the GPUs, the output layer counted.
    ///
    /// # Errors
    ///
    /// Whatever the source of the numbers fails with.
    fn footprints(&self, n_gpu_layers: u32) -> Result<Footprints, Self::Error>;
}

impl Cost for Estimate {
    type Error = std::convert::Infallible;

    fn footprints(&self, n_gpu_layers: u32) -> Result<Footprints, Self::Error> {
        Ok(Self::footprints(self, n_gpu_layers))
    }
}

/// The largest number of layers from 1 to `max` that fits: tries them all, from the largest.
///
/// # Errors
///
/// The first error of `cost`.
pub fn largest_fitting<C: Cost>(
    cost: &C,
    max: u32,
    mut fits: impl FnMut(u32, &Footprints) -> bool,
) -> Result<Option<(u32, Footprints)>, C::Error> {
    for n in (1..=max).rev() {
        let footprints = cost.footprints(n)?;
        if fits(n, &footprints) {
            return Ok(Some((n, footprints)));
        }
    }
    Ok(None)
}

/// The largest number of layers from 1 to `max` that fits, found with few evaluations near `start`.
///
/// Steps of 1, 1, 2, 4, ... go up from `start` while it fits, or down until it does, and the gap is halved. The answer has been
/// evaluated, and so has the number above it, which does not fit, unless the answer is `max`. Where cost does not grow with every
/// layer there may be a larger answer further up: `hopeful` lists, largest first, the numbers at which the caller has reason to
/// look; those above the answer are tried too.
///
/// # Errors
///
/// The first error of `cost`.
pub fn refine<C: Cost>(
    cost: &C,
    start: u32,
    max: u32,
    hopeful: &[u32],
    mut fits: impl FnMut(u32, &Footprints) -> bool,
) -> Result<Option<(u32, Footprints)>, C::Error> {
    let mut seen: BTreeMap<u32, Option<Footprints>> = BTreeMap::new();
    let mut good = |n: u32| -> Result<bool, C::Error> {
        if let Some(known) = seen.get(&n) {
            return Ok(known.is_some());
        }
        let footprints = cost.footprints(n)?;
        let fit = fits(n, &footprints);
        seen.insert(n, fit.then_some(footprints));
        Ok(fit)
    };

    if max == 0 {
        return Ok(None);
    }
    let start = start.clamp(1, max);
    // `low` fits (0: nothing does yet), `high` does not (max + 1: nothing is above).
    let (mut low, mut high) = (0, max + 1);
    // An estimate is mostly right or a layer short: the second step is one layer too, since overstepping costs a probe more.
    let mut steps = [1, 1].into_iter().chain((1..).map(|n| 1 << n.min(31)));
    let mut step = || steps.next().unwrap_or(1_u32);
    if good(start)? {
        low = start;
        while low < max {
            let next = low.saturating_add(step()).min(max);
            if !good(next)? {
                high = next;
                break;
            }
            low = next;
        }
    } else {
        high = start;
        while high > 1 {
            let next = high.saturating_sub(step()).max(1);
            if good(next)? {
                low = next;
                break;
            }
            high = next;
        }
    }
    while low > 0 && high - low > 1 {
        let middle = low + (high - low) / 2;
        if good(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    for &n in hopeful.iter().filter(|&&n| n > high && n <= max) {
        if good(n)? {
            low = n;
            // What was promised of the answer holds of this one too.
            while low < max && good(low + 1)? {
                low += 1;
            }
            break;
        }
    }
    Ok(seen
        .remove(&low)
        .flatten()
        .map(|footprints| (low, footprints)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{Cost, largest_fitting, refine};
    use crate::memory::{Footprint, Footprints};

    /// A cost by table: index 0 is one layer.
    struct Table {
        bytes: Vec<u64>,
        asked: RefCell<Vec<u32>>,
    }

    impl Table {
        fn new(bytes: &[u64]) -> Self {
            Self {
                bytes: bytes.to_vec(),
                asked: RefCell::default(),
            }
        }

        fn max(&self) -> u32 {
            u32::try_from(self.bytes.len()).unwrap()
        }
    }

    impl Cost for Table {
        type Error = Infallible;

        fn footprints(&self, n: u32) -> Result<Footprints, Infallible> {
            self.asked.borrow_mut().push(n);
            let gpu = Footprint::new(self.bytes[n as usize - 1], 0, 0);
            Ok(Footprints::new(vec![gpu], Footprint::default()))
        }
    }

    fn within(budget: u64) -> impl Fn(u32, &Footprints) -> bool {
        move |_, footprints| footprints.gpus[0].total() <= budget
    }

    fn layers(found: Option<(u32, Footprints)>) -> u32 {
        found.map_or(0, |(n, _)| n)
    }

    #[test]
    fn an_estimate_that_is_right_costs_two_evaluations() {
        let table = Table::new(&[10, 20, 30, 40, 50, 60]);
        let Ok(found) = refine(&table, 4, 6, &[], within(45));
        assert_eq!(layers(found), 4);
        assert_eq!(*table.asked.borrow(), [4, 5]);
    }

    #[test]
    fn a_full_offload_that_fits_costs_one() {
        let table = Table::new(&[10, 20, 30]);
        let Ok(found) = refine(&table, 3, 3, &[], within(45));
        assert_eq!(layers(found), 3);
        assert_eq!(*table.asked.borrow(), [3]);
    }

    #[test]
    fn an_answer_beyond_a_hump_is_found_where_there_is_reason_to_look() {
        // The last layer frees what the one before it borrowed.
        let table = Table::new(&[10, 20, 30, 70, 40]);
        let Ok(blind) = refine(&table, 3, 5, &[], within(45));
        assert_eq!(layers(blind), 3);
        let Ok(told) = refine(&table, 3, 5, &[5], within(45));
        assert_eq!(layers(told), 5);
    }

    #[test]
    fn nothing_fits_is_none() {
        let table = Table::new(&[10, 20]);
        let Ok(found) = refine(&table, 2, 2, &[], within(5));
        assert_eq!(found, None);
        let Ok(found) = largest_fitting(&table, 2, within(5));
        assert_eq!(found, None);
    }

    proptest! {
        #[test]
        fn on_a_growing_cost_it_equals_trying_them_all(
            steps in prop::collection::vec(0u64..100, 1..130),
            budget in 0u64..7000,
            start in 0u32..140,
        ) {
            let bytes: Vec<u64> = steps.iter().scan(0, |sum, step| { *sum += step; Some(*sum) }).collect();
            let table = Table::new(&bytes);
            let Ok(all) = largest_fitting(&table, table.max(), within(budget));
            table.asked.borrow_mut().clear();
            let Ok(few) = refine(&table, start, table.max(), &[], within(budget));
            prop_assert_eq!(layers(few), layers(all));
            prop_assert!(table.asked.borrow().len() <= 16);
        }

        #[test]
        fn the_answer_fits_and_the_one_above_was_seen_not_to(
            bytes in prop::collection::vec(0u64..100, 1..100),
            hopeful in prop::collection::btree_set(1u32..100, 0..4),
            budget in 0u64..100,
            start in 0u32..100,
        ) {
            let table = Table::new(&bytes);
            let hopeful: Vec<u32> = hopeful.into_iter().rev().collect();
            let Ok(found) = refine(&table, start, table.max(), &hopeful, within(budget));
            if let Some((n, footprints)) = found {
                prop_assert!(footprints.gpus[0].total() <= budget);
                let above_was_seen = table.asked.borrow().contains(&(n + 1));
                prop_assert!(n == table.max() || (above_was_seen && bytes[n as usize] > budget));
            }
        }
    }
}
