//! Two ways to do the same work, which take turns in one process, so that a slow moment of the machine hits both.

/// Runs both ways in rounds, as long as `goes_on` returns true for the number of the next round. Returns a pair of
/// results for each round. The two ways alternate in going first, so that a drifting clock speed favours neither.
///
/// # Errors
///
/// The first error of either way.
pub fn in_turns<T, A, B, E>(
    of: &mut T,
    mut goes_on: impl FnMut(usize) -> bool,
    mut first: impl FnMut(&mut T) -> Result<A, E>,
    mut second: impl FnMut(&mut T) -> Result<B, E>,
) -> Result<Vec<(A, B)>, E> {
    let mut pairs = Vec::new();
    while goes_on(pairs.len()) {
        pairs.push(if pairs.len() % 2 == 0 {
            let one = first(of)?;
            (one, second(of)?)
        } else {
            let other = second(of)?;
            (first(of)?, other)
        });
    }
    Ok(pairs)
}

/// The median, or the upper of two middle values. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::{in_turns, median};

    #[test]
    fn the_ways_take_turns_and_each_round_has_a_pair() {
        let mut order = String::new();
        let way = |name: char| {
            move |order: &mut String| {
                order.push(name);
                Ok::<_, Infallible>(order.len())
            }
        };
        let pairs = in_turns(&mut order, |round| round < 3, way('a'), way('b'));
        assert_eq!((order.as_str(), pairs), ("abbaab", Ok(vec![(1, 2), (4, 3), (5, 6)])));
    }

    #[test]
    fn the_first_error_ends_the_rounds() {
        let mut rounds = 0;
        let fails = |rounds: &mut i32| {
            *rounds += 1;
            if *rounds < 2 { Ok(*rounds) } else { Err("no memory") }
        };
        assert_eq!(in_turns(&mut rounds, |_| true, fails, |_| Ok(())), Err("no memory"));
        assert_eq!(rounds, 2);
    }

    #[test]
    fn the_median_is_the_middle_value_in_any_order() {
        assert_eq!(median([3.0, 1.0, 200.0]), Some(3.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(3.0));
        assert_eq!(median([]), None);
    }
}
