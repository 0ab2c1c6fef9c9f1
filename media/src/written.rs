//! Writes pictures and sounds as files, for programs that do not accept pixels or samples. Nothing is lost: if such a
//! file is decoded, the result is the same picture or sound.

use std::io::Cursor;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::{Image, Sound};

/// The number of bytes in a WAV file before its samples.
const WAV_HEAD: u32 = 44;

impl Image {
    /// The picture as a PNG file. `None` if the picture is too large for the format.
    pub fn to_png(&self) -> Option<Vec<u8>> {
        let mut file = Cursor::new(Vec::new());
        let written =
            PngEncoder::new(&mut file).write_image(self.rgb(), self.width(), self.height(), ExtendedColorType::Rgb8);
        written.ok().map(|()| file.into_inner())
    }
}

impl Sound {
    /// The sound as a WAV file of one channel. Its samples have 16 bits if that loses nothing, as is the case for most
    /// files. Otherwise they are 32-bit floating-point numbers. `None` if the file would be longer than 4 GiB.
    pub fn to_wav(&self) -> Option<Vec<u8>> {
        let steps: Option<Vec<i16>> = self.samples().iter().map(|sample| step(*sample)).collect();
        let data: Vec<u8> = match &steps {
            Some(steps) => steps.iter().flat_map(|step| step.to_le_bytes()).collect(),
            None => self.samples().iter().flat_map(|sample| sample.to_le_bytes()).collect(),
        };
        // The numbers for PCM and for IEEE float (RIFF, `WAVE_FORMAT_PCM` and `WAVE_FORMAT_IEEE_FLOAT`).
        let (format, bytes_each) = if steps.is_some() { (1_u16, 2_u16) } else { (3, 4) };
        let length = u32::try_from(data.len()).ok().filter(|length| length.checked_add(WAV_HEAD).is_some())?;
        let mut file = Vec::with_capacity(WAV_HEAD as usize + data.len());
        file.extend(b"RIFF");
        file.extend((WAV_HEAD - 8 + length).to_le_bytes());
        file.extend(b"WAVEfmt ");
        file.extend(16_u32.to_le_bytes());
        file.extend(format.to_le_bytes());
        file.extend(1_u16.to_le_bytes());
        file.extend(self.rate().to_le_bytes());
        file.extend((self.rate() * u32::from(bytes_each)).to_le_bytes());
        file.extend(bytes_each.to_le_bytes());
        file.extend((8 * bytes_each).to_le_bytes());
        file.extend(b"data");
        file.extend(length.to_le_bytes());
        file.extend(data);
        Some(file)
    }
}

/// The 16-bit value of a sample, if the sample has exactly such a value.
fn step(sample: f32) -> Option<i16> {
    let scaled = sample * 32768.0;
    let is_whole = scaled.fract() == 0.0 && (-32768.0..=32767.0).contains(&scaled);
    is_whole.then_some(scaled as i16)
}

#[cfg(test)]
mod tests {
    use crate::{Image, Sound};

    #[test]
    fn a_picture_is_the_same_after_its_file() {
        let rgb: Vec<u8> = (0..7 * 5 * 3).map(|at| (at * 37 % 256) as u8).collect();
        let image = Image::from_rgb(7, 5, rgb).unwrap();
        let file = image.to_png().unwrap();
        assert_eq!(Image::from_bytes(&file).unwrap().rgb(), image.rgb());
        assert_eq!(Image::from_bytes(&file).unwrap().hash(), image.hash());
    }

    #[test]
    fn a_sound_is_the_same_after_its_file() {
        let whole: Vec<f32> = [0_i16, 1, -1, 32767, -32768, 1234].map(|step| f32::from(step) / 32768.0).to_vec();
        let odd = vec![0.1, -0.000_001, 1.0, -1.0];
        for (samples, bytes_each) in [(whole, 2), (odd, 4)] {
            let sound = Sound::from_samples(22_050, samples.clone()).unwrap();
            let file = sound.to_wav().unwrap();
            assert_eq!(file.len(), 44 + bytes_each * samples.len());
            let read = Sound::from_bytes(&file).unwrap();
            assert_eq!((read.rate(), read.samples()), (22_050, &samples[..]));
        }
    }
}
