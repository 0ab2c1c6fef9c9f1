//! Pictures and sounds in messages.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A picture or a sound of a message. Clones share the pixels and the samples.
///
/// With the feature `media`, it can be made from a file: `Media::from(Image::open("photo.jpg")?)`. In JSON, the pixels
/// or samples are written in base64.
#[derive(Clone, PartialEq)]
pub struct Media(Kind);

/// Without the feature `media`, there are no values of this type.
#[derive(Clone, PartialEq)]
enum Kind {
    #[cfg(feature = "media")]
    Image(autoplace_media::Image),
    #[cfg(feature = "media")]
    Sound(autoplace_media::Sound),
}

#[cfg(feature = "media")]
impl From<autoplace_media::Image> for Media {
    fn from(image: autoplace_media::Image) -> Self {
        Self(Kind::Image(image))
    }
}

#[cfg(feature = "media")]
impl From<autoplace_media::Sound> for Media {
    fn from(sound: autoplace_media::Sound) -> Self {
        Self(Kind::Sound(sound))
    }
}

impl Media {
    /// A hash: for a picture, of its pixels and its size; for a sound, of its samples and its rate. Equal pictures or
    /// sounds have equal hashes.
    pub fn hash(&self) -> [u8; 32] {
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => *image.hash().as_bytes(),
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => *sound.hash().as_bytes(),
        }
    }

    /// The width, the height and the pixels of a picture. Each pixel has three bytes, for red, green and blue. Pixels
    /// are stored row by row, from the top left. `None` for a sound.
    pub fn rgb(&self) -> Option<(u32, u32, &[u8])> {
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => Some((image.width(), image.height(), image.rgb())),
            #[cfg(feature = "media")]
            Kind::Sound(_) => None,
        }
    }

    /// The samples of a sound at `rate` samples per second, or the reason why it cannot be converted to this rate.
    /// `None` for a picture.
    pub fn samples_at(&self, rate: u32) -> Option<Result<Vec<f32>, String>> {
        let _ = rate;
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(_) => None,
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => {
                let samples = sound.resampled(rate).map(|sound| sound.samples().to_vec());
                Some(samples.map_err(|error| error.to_string()))
            }
        }
    }

    /// A picture as a PNG file. `None` for a sound, and for a picture that is too large for a PNG file.
    pub fn to_png(&self) -> Option<Vec<u8>> {
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => image.to_png(),
            #[cfg(feature = "media")]
            Kind::Sound(_) => None,
        }
    }

    /// A sound as a WAV file. `None` for a picture, and for a sound that is too long for a WAV file.
    pub fn to_wav(&self) -> Option<Vec<u8>> {
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(_) => None,
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => sound.to_wav(),
        }
    }

    /// Whether both are clones of the same picture or sound, so that they share its pixels or samples. The pixels and
    /// samples are not compared.
    pub fn is_clone_of(&self, other: &Self) -> bool {
        // Without the feature `media`, `other` is not used.
        let _ = other;
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => {
                matches!(&other.0, Kind::Image(other) if std::ptr::eq(image.rgb(), other.rgb()))
            }
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => {
                matches!(&other.0, Kind::Sound(other) if std::ptr::eq(sound.samples(), other.samples()))
            }
        }
    }

    fn saved(&self) -> Saved {
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => {
                let (width, height) = (image.width(), image.height());
                Saved::Image { width, height, rgb: Bytes(image.rgb().to_vec()) }
            }
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => {
                let samples = sound.samples().iter().flat_map(|sample| sample.to_le_bytes()).collect();
                Saved::Sound { rate: sound.rate(), samples: Bytes(samples) }
            }
        }
    }

    /// The text that stands for this picture or sound if the prompt is shown. Different pictures or sounds have
    /// different texts.
    pub(crate) fn shown(&self) -> String {
        let hash: String = self.hash().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("<{self} {hash}>")
    }
}

/// Writes `image of 640 x 480 pixels` or `sound of 3.2 s`.
impl fmt::Display for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the feature `media`, `f` is not used.
        let _ = &f;
        match self.0 {
            #[cfg(feature = "media")]
            Kind::Image(ref image) => write!(f, "image of {} x {} pixels", image.width(), image.height()),
            #[cfg(feature = "media")]
            Kind::Sound(ref sound) => write!(f, "sound of {:.1} s", sound.duration().as_secs_f64()),
        }
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Media({self})")
    }
}

/// The form in which pictures and sounds are saved and sent.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Saved {
    Image { width: u32, height: u32, rgb: Bytes },
    Sound { rate: u32, samples: Bytes },
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.saved().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Media {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_saved(Saved::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(feature = "media")]
fn from_saved(saved: Saved) -> Result<Media, String> {
    let media = match saved {
        Saved::Image { width, height, rgb } => autoplace_media::Image::from_rgb(width, height, rgb.0).map(Media::from),
        Saved::Sound { rate, samples } => {
            let (samples, rest) = samples.0.as_chunks::<4>();
            if !rest.is_empty() {
                return Err("the samples of a sound are whole numbers of 4 bytes".to_owned());
            }
            let samples = samples.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            autoplace_media::Sound::from_samples(rate, samples).map(Media::from)
        }
    };
    media.map_err(|error| error.to_string())
}

#[cfg(not(feature = "media"))]
fn from_saved(saved: Saved) -> Result<Media, String> {
    let what = match saved {
        Saved::Image { width, height, rgb } => format!("an image of {width} x {height} pixels, {} bytes", rgb.0.len()),
        Saved::Sound { rate, samples } => format!("a sound at {rate} Hz, {} bytes", samples.0.len()),
    };
    Err(format!("{what}: this build has no support for images and sound (feature `media`)"))
}

/// Bytes. In formats that people read, they are written as base64, and in other formats as bytes.
struct Bytes(Vec<u8>);

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_used = digit <= three.len();
            let value = DIGITS[(bits >> (18 - 6 * digit) & 63) as usize];
            text.push(if is_used { char::from(value) } else { '=' });
        }
    }
    text
}

/// Decodes a base64 text; `None` if it is not valid.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (fours, []) = text.as_bytes().as_chunks::<4>() else { return None };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (at, four) in fours.iter().enumerate() {
        let padding = four.iter().rev().take_while(|digit| **digit == b'=').count();
        if padding > 2 || (padding > 0 && at + 1 < fours.len()) {
            return None;
        }
        let mut bits = 0;
        for digit in &four[..4 - padding] {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * padding;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(&to_base64(&self.0)),
            false => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfBytes;

        impl Visitor<'_> for OfBytes {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                let invalid = || E::invalid_value(de::Unexpected::Other("another text"), &self);
                from_base64(text).map(Bytes).ok_or_else(invalid)
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }

        match deserializer.is_human_readable() {
            true => deserializer.deserialize_str(OfBytes),
            false => deserializer.deserialize_byte_buf(OfBytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{from_base64, to_base64};

    #[test]
    fn base64_is_decoded_and_other_texts_are_refused() {
        // The examples in RFC 4648, section 10.
        let known =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in known {
            assert_eq!(to_base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&to_base64(&all)), Some(all));
        for wrong in ["Zg", "Zg=", "====", "Z===", "Zg==Zm9v", "Zm9*", "Zm 9"] {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
    }
}
