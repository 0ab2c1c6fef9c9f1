//! How many layers each of several GPUs takes: contiguous, in the GPUs' order, and filled evenly.

/// What a layer takes of each GPU, and what each GPU can give. Sizes in bytes.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    /// Per GPU, the sums of the layers before the n-th: one entry more than there are layers.
    sums: Vec<Vec<u64>>,
}

impl Spread {
    /// `bytes(gpu, layer)` is what a layer takes of a GPU; the output layer is the last.
    pub(super) fn new(n_gpus: usize, layers: u32, bytes: impl Fn(usize, u32) -> u64) -> Self {
        let sums = |gpu| {
            let mut sum = 0_u64;
            let each = (0..layers).map(|layer| {
                sum = sum.saturating_add(bytes(gpu, layer));
                sum
            });
            std::iter::once(0).chain(each).collect()
        };
        Self {
            sums: (0..n_gpus).map(sums).collect(),
        }
    }

    fn layers(&self) -> usize {
        self.sums.first().map_or(0, |sums| sums.len() - 1)
    }

    /// What each GPU holds with these layers.
    pub(super) fn held(&self, counts: &[u32]) -> Vec<u64> {
        let all: usize = counts.iter().map(|&count| count as usize).sum();
        let mut begin = self.layers().saturating_sub(all);
        let held = self.sums.iter().zip(counts).map(|(sums, &count)| {
            let end = (begin + count as usize).min(sums.len() - 1);
            let held = sums[end].saturating_sub(sums[begin]);
            begin = end;
            held
        });
        held.collect()
    }

    /// The layers per GPU, of the last `n` layers, such that the fullest GPU is as little full as can be, and the
    /// others as nearly so as whole layers allow. `room` says what each GPU can give to layers: less than none is none.
    ///
    /// GPUs that are filled evenly keep something to spare each, and all of them are busy on long prompts.
    pub(super) fn counts(&self, n: u32, room: &[u64]) -> Vec<u32> {
        let layers = self.layers();
        let first = layers - (n as usize).min(layers);
        // As full as 1 where it fits. Where it does not, the least overfull is what an error should tell of.
        let mut most = 1.0;
        while !self.fits(first, room, most) && most < 1e18 {
            most *= 2.0;
        }
        let mut least = 0.0;
        // 52 bits: to the byte for anything that has fewer than a petabyte.
        for _ in 0..52 {
            let middle = f64::midpoint(least, most);
            if self.fits(first, room, middle) {
                most = middle;
            } else {
                least = middle;
            }
        }
        self.even(first, room, most)
    }

    /// How far GPU `gpu` gets from layer `begin` on with so much room.
    fn reach(&self, gpu: usize, begin: usize, room: u64) -> usize {
        // The first sum is that of no layer, which always fits.
        let sums = &self.sums[gpu][begin..];
        let fitting = sums.partition_point(|&sum| sum.saturating_sub(sums[0]) <= room);
        begin + fitting.saturating_sub(1)
    }

    /// Whether the layers from `first` on fit if each GPU gives this share of its room. In a fixed order, none does
    /// better than the one that takes all it can, one GPU after the other.
    fn fits(&self, first: usize, room: &[u64], share: f64) -> bool {
        let each = room.iter().enumerate();
        let end = each.fold(first, |begin, (gpu, &room)| {
            self.reach(gpu, begin, part(room, share))
        });
        end == self.layers()
    }

    /// The layers per GPU, none fuller than this share, each as nearly as full as what is left for those behind it.
    fn even(&self, first: usize, room: &[u64], share: f64) -> Vec<u32> {
        let layers = self.layers();
        // Where each GPU must begin at the latest for those behind it to hold the rest.
        let mut latest = vec![layers; room.len() + 1];
        for gpu in (0..room.len()).rev() {
            let (sums, end) = (&self.sums[gpu], latest[gpu + 1]);
            let room = part(room[gpu], share);
            latest[gpu] = sums[..=end].partition_point(|&sum| sums[end] - sum > room);
        }
        let mut begin = first;
        let mut counts = Vec::with_capacity(room.len());
        for (gpu, &own) in room.iter().enumerate() {
            let sums = &self.sums[gpu];
            let rest = room[gpu..]
                .iter()
                .fold(0, |sum: u64, &room| sum.saturating_add(room));
            let fair =
                sums[begin].saturating_add(part(sums[layers] - sums[begin], ratio(own, rest)));
            let above = sums.partition_point(|&sum| sum < fair);
            let nearest = match above.checked_sub(1) {
                Some(below) if above > layers || fair - sums[below] <= sums[above] - fair => below,
                _ => above,
            };
            // The last takes what is left, also where nothing has room.
            let end = if gpu + 1 == room.len() {
                layers
            } else {
                let most = self.reach(gpu, begin, part(own, share));
                nearest.max(latest[gpu + 1]).min(most).max(begin)
            };
            counts.push((end - begin) as u32);
            begin = end;
        }
        counts
    }
}

/// A share of some bytes; saturates.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)] // a rounded byte is nothing here: the footprints decide in the end
fn part(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[allow(clippy::cast_precision_loss)] // as above
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::Spread;

    /// The fullest share over all ways to cut the last `n` layers, each GPU's as large as `counts` makes them.
    fn fullest(bytes: &[u64], counts: &[u32], room: &[u64]) -> f64 {
        let mut rest = &bytes[bytes.len() - counts.iter().sum::<u32>() as usize..];
        let mut most = 0.0_f64;
        for (&count, &room) in counts.iter().zip(room) {
            let (own, others) = rest.split_at(count as usize);
            most = most.max(own.iter().sum::<u64>() as f64 / room as f64);
            rest = others;
        }
        most
    }

    /// Every way to share `n` layers between three GPUs.
    fn ways(n: u32) -> impl Iterator<Item = [u32; 3]> {
        (0..=n).flat_map(move |a| (0..=n - a).map(move |b| [a, b, n - a - b]))
    }

    #[test]
    fn equal_gpus_share_equal_layers_evenly() {
        let spread = Spread::new(3, 12, |_, _| 100);
        assert_eq!(spread.counts(12, &[1000, 1000, 1000]), [4, 4, 4]);
        assert_eq!(spread.counts(6, &[1000, 2000, 1000]), [1, 3, 2]);
    }

    #[test]
    fn a_gpu_without_room_gets_nothing() {
        let spread = Spread::new(2, 5, |_, _| 100);
        assert_eq!(spread.counts(5, &[0, 1000]), [0, 5]);
        assert_eq!(spread.counts(5, &[1000, 0]), [5, 0]);
        assert_eq!(spread.counts(5, &[0, 0]), [0, 5]);
    }

    #[test]
    fn what_fits_nowhere_is_overfull_as_little_as_can_be() {
        let spread = Spread::new(2, 10, |_, _| 100);
        assert_eq!(spread.counts(10, &[200, 300]), [4, 6]);
    }

    proptest! {
        #[test]
        fn no_other_way_fills_the_fullest_gpu_less(
            bytes in prop::collection::vec(1u64..1000, 1..12),
            room in prop::array::uniform3(1u64..10_000),
            n in 0u32..14,
        ) {
            let n = n.min(bytes.len() as u32);
            let spread = Spread::new(3, bytes.len() as u32, |_, layer| bytes[layer as usize]);
            let counts = spread.counts(n, &room);
            prop_assert_eq!(counts.iter().sum::<u32>(), n);
            let ours = fullest(&bytes, &counts, &room);
            for other in ways(n) {
                prop_assert!(ours <= fullest(&bytes, &other, &room) * (1.0 + 1e-9) + 1e-3, "{:?} {:?}", counts, other);
            }
        }
    }
}
