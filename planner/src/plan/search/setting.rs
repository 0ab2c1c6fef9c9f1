//! The settings that are chosen beside the placement itself: the tokens computed at once.

use crate::memory::ContextParams;
use crate::plan::Request;

/// The parameters of all that a request allows, the wanted one first and each the next step from it. `params` are the
/// request's, resolved.
pub(super) fn settings(request: &Request, params: &ContextParams) -> impl Iterator<Item = ContextParams> {
    let most = request.max_ubatch.map_or(0, |most| most.min(params.n_batch).min(params.n_ctx));
    ubatches(params.n_ubatch, most).into_iter().map(|n_ubatch| ContextParams { n_ubatch, ..params.clone() })
}

/// The wanted one, and its doubles up to the most. 0 is a whole batch.
fn ubatches(wanted: u32, most: u32) -> Vec<u32> {
    let double = |&n: &u32| n.checked_mul(2).filter(|double| (1..=most).contains(double));
    std::iter::successors(Some(wanted), double).collect()
}

#[cfg(test)]
mod tests {
    use super::ubatches;

    #[test]
    fn ubatches_are_doubled_as_far_as_is_allowed() {
        assert_eq!(ubatches(512, 0), [512]);
        assert_eq!(ubatches(512, 1024), [512, 1024]);
        assert_eq!(ubatches(512, 2048), [512, 1024, 2048]);
        assert_eq!(ubatches(0, 2048), [0]);
    }
}
