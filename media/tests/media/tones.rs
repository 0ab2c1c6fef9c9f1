//! Writes sounds.

use std::f64::consts::TAU;

use crate::pictures::riff;

/// 0.3 seconds of 440 Hz at half of the maximum amplitude, in two channels at 22,050 Hz. The files were made by lame
/// 3.100 and oggenc 1.4.2.
pub(crate) const MP3: &[u8] = include_bytes!("tone.mp3");
pub(crate) const OGG: &[u8] = include_bytes!("tone.ogg");

/// A sine of half the amplitude.
pub(crate) fn sine(rate: u32, hertz: f64, seconds: f64) -> Vec<f32> {
    let frames = (f64::from(rate) * seconds) as u32;
    (0..frames).map(|at| (0.5 * (TAU * hertz * f64::from(at) / f64::from(rate)).sin()) as f32).collect()
}

/// The amplitude of a frequency in the middle half of a sound.
pub(crate) fn amplitude(samples: &[f32], rate: u32, hertz: f64) -> f64 {
    let middle = &samples[samples.len() / 4..samples.len() * 3 / 4];
    let (mut real, mut imaginary) = (0.0, 0.0);
    for (at, sample) in middle.iter().enumerate() {
        let angle = TAU * hertz * at as f64 / f64::from(rate);
        real += f64::from(*sample) * angle.cos();
        imaginary += f64::from(*sample) * angle.sin();
    }
    2.0 * f64::hypot(real, imaginary) / middle.len() as f64
}

/// A WAV file of interleaved samples.
pub(crate) struct Wav<'a> {
    pub(crate) rate: u32,
    pub(crate) channels: u16,
    pub(crate) samples: &'a [f32],
}

impl Wav<'_> {
    pub(crate) fn pcm16(&self) -> Vec<u8> {
        let samples = self.samples.iter().flat_map(|sample| ((sample * 32_767.0) as i16).to_le_bytes());
        self.encoded(1, 16, &samples.collect::<Vec<u8>>())
    }

    pub(crate) fn pcm8(&self) -> Vec<u8> {
        let samples = self.samples.iter().map(|sample| (sample * 127.0 + 128.0) as u8);
        self.encoded(1, 8, &samples.collect::<Vec<u8>>())
    }

    pub(crate) fn pcm24(&self) -> Vec<u8> {
        let samples =
            self.samples.iter().flat_map(|sample| ((sample * 8_388_607.0) as i32).to_le_bytes()[..3].to_vec());
        self.encoded(1, 24, &samples.collect::<Vec<u8>>())
    }

    pub(crate) fn float(&self) -> Vec<u8> {
        let samples = self.samples.iter().flat_map(|sample| sample.to_le_bytes());
        self.encoded(3, 32, &samples.collect::<Vec<u8>>())
    }

    fn encoded(&self, format: u16, bits: u16, data: &[u8]) -> Vec<u8> {
        let frame = self.channels.wrapping_mul(bits / 8);
        let mut header = [format.to_le_bytes(), self.channels.to_le_bytes()].concat();
        header.extend([self.rate.to_le_bytes(), self.rate.wrapping_mul(frame.into()).to_le_bytes()].concat());
        header.extend([frame.to_le_bytes(), bits.to_le_bytes()].concat());
        riff(b"WAVE", &[(b"fmt ", &header), (b"data", data)])
    }
}

/// A FLAC file with one channel. In each frame, all samples have the same value.
pub(crate) struct FlatFlac {
    pub(crate) rate: u32,
    pub(crate) value: i16,
    pub(crate) samples_per_frame: u16,
    pub(crate) frames: u32,
    /// The number of samples in the header, or 0 if it does not state one.
    pub(crate) samples: u32,
}

impl FlatFlac {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut file = b"fLaC\x80\0\0\x22".to_vec();
        file.extend([self.samples_per_frame.to_be_bytes(), self.samples_per_frame.to_be_bytes()].concat());
        file.extend([0; 6]);
        // 20 bits with the rate, 3 with the channels minus 1, 5 with the bits minus 1, and 36 with the samples.
        let packed = u64::from(self.rate) << 44 | 15 << 36 | u64::from(self.samples);
        file.extend(packed.to_be_bytes());
        file.extend([0; 16]);
        for number in 0..self.frames {
            let mut frame = vec![0xff, 0xf8, 0x70, 0x08];
            let mut letters = [0; 4];
            frame.extend(char::from_u32(number).unwrap().encode_utf8(&mut letters).bytes());
            frame.extend((self.samples_per_frame - 1).to_be_bytes());
            frame.push(crc(&frame, 8, 0x07) as u8);
            frame.push(0);
            frame.extend(self.value.to_be_bytes());
            frame.extend((crc(&frame, 16, 0x8005) as u16).to_be_bytes());
            file.extend(frame);
        }
        file
    }
}

/// A cyclic redundancy check of this many bits.
fn crc(bytes: &[u8], bits: u32, polynomial: u32) -> u32 {
    let top = 1 << (bits - 1);
    let crc = bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ u32::from(*byte) << (bits - 8);
        (0..8).fold(crc, |crc, _| if crc & top == 0 { crc << 1 } else { crc << 1 ^ polynomial })
    });
    crc & (u32::MAX >> (32 - bits))
}
