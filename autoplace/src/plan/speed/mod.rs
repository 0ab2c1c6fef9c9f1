//! How fast a placement generates, predicted: every token reads its layers from the memory that holds them, one device after the
//! other.
//!
//! That is Amdahl's law over two bandwidths, and the reason for the cliff: while any layer is on the host, its bytes pass at a
//! tenth of the GPU's speed, and no layer more on the GPU makes that part shorter. `docs/speed-model.md` holds it against a
//! published sweep.

mod traffic;

use crate::memory::Place;
use crate::memory::estimate::Assignment;

pub use traffic::Traffic;

/// How fast a device gets through its layers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Bytes per second that it really reads while it computes, which is less than its data sheet says.
    pub bytes_per_second: f64,
    /// Seconds that a layer takes whatever its size: launches, barriers.
    pub seconds_per_layer: f64,
}

impl Rate {
    /// A device that reads so many bytes per second and loses no time between layers.
    #[must_use]
    pub const fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
            seconds_per_layer: 0.0,
        }
    }

    /// Sets the seconds that a layer takes whatever its size.
    #[must_use]
    pub const fn per_layer(mut self, seconds: f64) -> Self {
        self.seconds_per_layer = seconds;
        self
    }
}

/// Predicts the tokens per second of one sequence, given the rates of the devices.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeedModel {
    traffic: Traffic,
    gpus: Vec<Rate>,
    host: Rate,
    seconds_per_crossing: f64,
    kv_on_host: bool,
}

impl SpeedModel {
    /// A model of this traffic over these devices.
    #[must_use]
    pub const fn new(traffic: Traffic, gpus: Vec<Rate>, host: Rate) -> Self {
        Self {
            traffic,
            gpus,
            host,
            seconds_per_crossing: 0.0,
            kv_on_host: false,
        }
    }

    /// Sets the seconds that it takes to hand a token's activations from one device to the next.
    #[must_use]
    pub const fn per_crossing(mut self, seconds: f64) -> Self {
        self.seconds_per_crossing = seconds;
        self
    }

    /// Sets whether keys and values stay on the host (`offload_kqv` off).
    #[must_use]
    pub const fn kv_on_host(mut self, on_host: bool) -> Self {
        self.kv_on_host = on_host;
        self
    }

    /// A model of one GPU whose two rates follow from two measured speeds: all on the host, and all on the GPU. `None` where a
    /// speed is not above 0.
    #[must_use]
    pub fn calibrated(traffic: Traffic, all_on_host: f64, all_on_gpu: f64) -> Option<Self> {
        let speeds = [all_on_host, all_on_gpu];
        if !speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0) {
            return None;
        }
        let bytes = as_float(traffic.total());
        let [host, gpu] = speeds.map(|speed| Rate::new(bytes * speed));
        Some(Self::new(traffic, vec![gpu], host))
    }

    /// Seconds per generated token.
    #[must_use]
    pub fn seconds(&self, assignment: &Assignment) -> f64 {
        // The embedding of the token comes from the host.
        let mut at = Place::Host;
        let mut seconds = 0.0;
        for (layer, place) in assignment.layers().enumerate() {
            let rate = self.rate(place);
            let kv_rate = if self.kv_on_host { &self.host } else { rate };
            let bytes = |of: &[u64]| as_float(of.get(layer).copied().unwrap_or(0));
            seconds += bytes(&self.traffic.weights) / rate.bytes_per_second;
            seconds += bytes(&self.traffic.kv) / kv_rate.bytes_per_second;
            seconds += rate.seconds_per_layer;
            if place != at {
                seconds += self.seconds_per_crossing;
                at = place;
            }
        }
        seconds
    }

    /// Generated tokens per second.
    #[must_use]
    pub fn tokens_per_second(&self, assignment: &Assignment) -> f64 {
        1.0 / self.seconds(assignment)
    }

    fn rate(&self, place: Place) -> &Rate {
        match place {
            Place::Gpu(gpu) => self.gpus.get(gpu).unwrap_or(&self.host),
            Place::Host => &self.host,
        }
    }
}

#[allow(clippy::cast_precision_loss)] // bytes of a model: to a millionth of a millionth
const fn as_float(bytes: u64) -> f64 {
    bytes as f64
}
