//! Converts a decoder's pixels to 8 bits of red, green and blue.

use image::{DynamicImage, RgbImage};

/// Uses grey for all three colours, rounds 16 bits to 8, and puts transparent pixels on white.
pub(super) fn over_white(image: DynamicImage) -> RgbImage {
    match image {
        DynamicImage::ImageRgb8(image) => image,
        DynamicImage::ImageRgba8(image) => filled(
            image.width(),
            image.height(),
            image.pixels().map(|pixel| {
                let [r, g, b, a] = pixel.0;
                [r, g, b].map(|value| over_8(value, a))
            }),
        ),
        DynamicImage::ImageLumaA8(image) => filled(
            image.width(),
            image.height(),
            image.pixels().map(|pixel| {
                let [grey, a] = pixel.0;
                [over_8(grey, a); 3]
            }),
        ),
        DynamicImage::ImageRgba16(image) => filled(
            image.width(),
            image.height(),
            image.pixels().map(|pixel| {
                let [r, g, b, a] = pixel.0;
                [r, g, b].map(|value| over_16(value, a))
            }),
        ),
        DynamicImage::ImageLumaA16(image) => filled(
            image.width(),
            image.height(),
            image.pixels().map(|pixel| {
                let [grey, a] = pixel.0;
                [over_16(grey, a); 3]
            }),
        ),
        // The other types that the formats have: grey of 8 or 16 bits, and colours of 16 bits.
        opaque => opaque.into_rgb8(),
    }
}

fn filled(width: u32, height: u32, pixels: impl Iterator<Item = [u8; 3]>) -> RgbImage {
    let mut image = RgbImage::new(width, height);
    for (to, from) in image.pixels_mut().zip(pixels) {
        to.0 = from;
    }
    image
}

/// Blends a value of 8 bits with white, and rounds it.
fn over_8(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    let sum = value * alpha + 255 * (255 - alpha);
    ((sum + 127) / 255) as u8
}

/// Blends a value of 16 bits with white. The result is rounded only once, to 8 bits.
fn over_16(value: u16, alpha: u16) -> u8 {
    const WHITE: u64 = 65_535;
    let (value, alpha) = (u64::from(value), u64::from(alpha));
    let sum = value * alpha + WHITE * (WHITE - alpha);
    ((sum * 255 + WHITE * WHITE / 2) / (WHITE * WHITE)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_values_stay_and_transparent_ones_are_white() {
        for value in 0..=255 {
            assert_eq!((over_8(value, 255), over_8(value, 0)), (value, 255));
            let wide = u16::from(value) * 257;
            assert_eq!((over_16(wide, u16::MAX), over_16(wide, 0)), (value, 255));
        }
        assert_eq!((over_8(0, 128), over_16(0, 0x8000)), (127, 127));
    }
}
