//! Random data of ggml's tensor types: random bits for the quants, and small numbers for the scales that multiply them.

use autoplace_gguf::TensorType as T;

/// xorshift64*, which is random enough for weights and the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// The data of a tensor. Norms are near 1 and the decay of a state is negative, so that values stay finite.
    pub fn tensor(&mut self, name: &str, ty: T, elements: u64) -> Vec<u8> {
        let elements = usize::try_from(elements).unwrap();
        let mut data = Vec::new();
        match ty {
            T::F32 => {
                let (middle, spread) = range(name);
                for _ in 0..elements {
                    data.extend_from_slice(&(middle + spread * self.unit()).to_le_bytes());
                }
            }
            T::F16 => {
                for _ in 0..elements {
                    data.extend_from_slice(&half(0.05 * self.unit()).to_le_bytes());
                }
            }
            quantised => {
                let block = usize::try_from(quantised.block_size()).unwrap();
                assert_eq!(elements % block, 0, "{name}");
                for _ in 0..elements / block {
                    data.extend_from_slice(&self.block(quantised));
                }
            }
        }
        data
    }

    /// One block (ggml-common.h). The quants are random bits, and the scales are at their offsets in the struct.
    fn block(&mut self, ty: T) -> Vec<u8> {
        let bytes = usize::try_from(ty.type_size()).unwrap();
        let mut block: Vec<u8> = (0..bytes).map(|_| (self.bits() >> 32) as u8).collect();
        let scales: &[usize] = match ty {
            T::Q8_0 | T::Q4_0 | T::Q5_0 | T::IQ4_NL | T::IQ4_XS => &[0],
            T::Q4_K | T::Q5_K => &[0, 2],
            T::Q6_K => &[208],
            // The scale is one byte with an exponent; 127 means 1.
            T::MXFP4 => {
                block[0] = 119 + (self.bits() % 4) as u8;
                &[]
            }
            other => panic!("no random {other}"),
        };
        // The K-quants multiply this scale by another scale of 6 to 8 bits and by the quant. The other types multiply
        // this scale only by the quant.
        let size = match ty {
            T::Q4_K | T::Q5_K | T::Q6_K | T::IQ4_XS => 0.000_1,
            _ => 0.001,
        };
        for &at in scales {
            let scale = half(size * (1.5 + 0.5 * self.unit()));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        block
    }
}

/// The centre and the spread of the numbers of the tensor with this name.
fn range(name: &str) -> (f32, f32) {
    if name.contains("norm") && !name.ends_with("bias") {
        (1.0, 0.1)
    } else if name.ends_with("ssm_a") {
        (-1.0, -0.5)
    } else {
        (0.0, 0.05)
    }
}

/// Converts to 16 bits by truncation. The number must be 0 or normal in 32 bits.
fn half(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
    if exponent <= 0 {
        // A subnormal number has its fraction, with the leading 1, shifted to exponent 0.
        let fraction = (bits & 0x7f_ffff) | 0x80_0000;
        let shift = 14 - exponent;
        return sign | if shift < 32 { (fraction >> shift) as u16 } else { 0 };
    }
    sign | ((exponent as u16) << 10) | ((bits >> 13) & 0x3ff) as u16
}

/// Pseudo-random choices from a number, the same on every machine.
pub struct Dice(Random);

impl Dice {
    pub fn new(number: u64) -> Self {
        let mut random = Random::new(number + 1);
        // The first numbers of similar seeds are similar, so they are skipped.
        for _ in 0..8 {
            random.bits();
        }
        Self(random)
    }

    /// A number from 0 up to `n`, but less than `n`.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, n: N) -> N {
        let n = n.try_into().ok().unwrap();
        N::try_from((self.0.bits() >> 16) % n).ok().unwrap()
    }

    /// True with a probability of `n` percent.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number from `least` to `most` percent of `whole`.
    pub fn share(&mut self, whole: u64, least: u64, most: u64) -> u64 {
        let parts = 10_000;
        let (least, most) = (least * 100, most * 100);
        let share = least + self.below(most - least + 1);
        u64::try_from(u128::from(whole) * u128::from(share) / parts).unwrap()
    }
}
