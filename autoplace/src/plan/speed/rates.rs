//! How fast the devices of a machine get through layers, by what is known of them.

use crate::machine::{Bandwidth, BandwidthSource, Gpu, GpuKind, Host};

use super::Rate;

/// What a GPU reads of its peak while it generates: 83 % was calibrated on an RTX 5060 Ti (docs/speed-model.md).
const GPU_SHARE: f64 = 0.8;
/// The same of a host whose figure is a peak: 65 % of two channels of DDR4-2400 there.
const HOST_SHARE: f64 = 0.65;
/// What is taken for the bandwidth of a GPU of which nothing is known, in bytes per second: a card of the middle. It decides
/// between placements only and is never shown as a speed.
const UNKNOWN_GPU: f64 = 400e9;
/// The same of a host: two channels of DDR4-3200, of which two thirds are read.
const UNKNOWN_HOST: f64 = 34e9;
/// Seconds that a layer takes on a GPU whatever its size: some ten kernels, of one or two microseconds each to launch.
const GPU_LAYER: f64 = 15e-6;
/// The same on the host: some thirty barriers between its threads.
const HOST_LAYER: f64 = 30e-6;
/// Seconds to hand a token's activations from one device to the next: two copies over PCIe and a wait for each. What plans count,
/// for [`SpeedModel::per_crossing`](super::SpeedModel::per_crossing).
pub const CROSSING: f64 = 20e-6;

/// The rates of a machine's devices that plans are made by.
///
/// ```
/// use autoplace::machine::{Gpu, Host, bytes::gib};
/// use autoplace::plan::speed::Rates;
/// let card = Gpu::named("RTX 4090").unwrap();
/// let host = Host::new(gib(64)).bandwidth(60_000_000_000);
/// // Of peaks, what is really read: 80 % and 65 %.
/// let rates = Rates::of(&[&card], &host);
/// assert_eq!(rates.gpus[0].bytes_per_second, 0.8 * 1008e9);
/// assert_eq!(rates.host.bytes_per_second, 0.65 * 60e9);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Of each GPU.
    pub gpus: Vec<Rate>,
    /// Of the host.
    pub host: Rate,
    /// Whether every one of them comes of a figure. What is guessed instead decides between placements and is no speed to show.
    pub known: bool,
    /// Whether every figure was measured.
    pub measured: bool,
}

impl Rates {
    /// The rates of these GPUs and of the host: all of a measured bandwidth, a share of one that is a peak, a guess where there
    /// is none.
    #[must_use]
    pub fn of(gpus: &[&Gpu], host: &Host) -> Self {
        let host_rate = rate(host.bandwidth, HOST_SHARE, UNKNOWN_HOST);
        let gpu_rate = |gpu: &&Gpu| {
            // In the same memory, unless somebody knows better.
            let unknown = match gpu.kind {
                GpuKind::Integrated => host_rate,
                _ => UNKNOWN_GPU,
            };
            Rate::new(rate(gpu.bandwidth, GPU_SHARE, unknown)).per_layer(GPU_LAYER)
        };
        let figures = || {
            let gpus = gpus.iter().map(|gpu| match gpu.kind {
                GpuKind::Integrated => gpu.bandwidth.or(host.bandwidth),
                _ => gpu.bandwidth,
            });
            gpus.chain([host.bandwidth])
        };
        Self {
            gpus: gpus.iter().map(gpu_rate).collect(),
            host: Rate::new(host_rate).per_layer(HOST_LAYER),
            known: figures().all(|figure| figure.is_some()),
            measured: figures().all(|figure| figure.is_some_and(|figure| figure.is_measured())),
        }
    }
}

/// Bytes per second that are really read: all of what was measured, a share of a peak.
#[allow(clippy::cast_precision_loss)] // bytes per second: to a millionth of a millionth
fn rate(figure: Option<Bandwidth>, share: f64, unknown: f64) -> f64 {
    match figure {
        Some(figure) if figure.bytes_per_second > 0 => {
            let share = match figure.source {
                BandwidthSource::Measured => 1.0,
                _ => share,
            };
            figure.bytes_per_second as f64 * share
        }
        _ => unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{HOST_SHARE, Rates};
    use crate::machine::{Gpu, GpuKind, Host, gib};

    #[test]
    fn a_peak_counts_in_part_and_what_is_unknown_is_said_to_be() {
        let host = Host::new(gib(64)).bandwidth(60_000_000_000);
        let card = Gpu::new("card").bandwidth(1_000_000_000_000);
        let rates = Rates::of(&[&card], &host);
        assert!((rates.gpus[0].bytes_per_second - 800e9).abs() < 1.0);
        assert!((rates.host.bytes_per_second - 60e9 * HOST_SHARE).abs() < 1.0);
        assert!(rates.known && !rates.measured);
        assert!(!Rates::of(&[&Gpu::new("other")], &host).known);
        assert!(!Rates::of(&[&card], &Host::new(gib(64))).known);
    }

    #[test]
    fn an_integrated_gpu_reads_the_hosts_memory() {
        let host = Host::new(gib(64)).bandwidth(60_000_000_000);
        let gpu = Gpu::new("shared").kind(GpuKind::Integrated);
        let rates = Rates::of(&[&gpu], &host);
        assert!(rates.known);
        let (gpu, host) = (&rates.gpus[0], &rates.host);
        assert!((gpu.bytes_per_second - host.bytes_per_second).abs() < 1.0);
        assert!(gpu.seconds_per_layer < host.seconds_per_layer);
    }
}
