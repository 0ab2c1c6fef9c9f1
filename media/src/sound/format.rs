//! The format of a sound, recognised by its first bytes.

use crate::Error;

/// A format that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Flac,
    Mp3,
    Ogg,
    Wav,
}

const FORMATS: &str = "a WAV, MP3, FLAC or Ogg Vorbis file";

impl Format {
    /// The format of a file that begins with `bytes`, or an error that says what kind of file it is. An ID3 tag means
    /// MP3.
    pub(super) fn detect(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        let found = match bytes {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => return Ok(Self::Wav),
            [b'f', b'L', b'a', b'C', ..] => return Ok(Self::Flac),
            [b'O', b'g', b'g', b'S', ..] => return Ok(Self::Ogg),
            [b'I', b'D', b'3', ..] => return Ok(Self::Mp3),
            // AAC begins with the same eleven bits. But its layer is 0.
            [0xff, second, ..] if second & 0xe0 == 0xe0 && second & 0x06 != 0 => return Ok(Self::Mp3),
            [0xff, second, ..] if second & 0xf6 == 0xf0 => "it is AAC: convert it to WAV or FLAC".to_owned(),
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => "it is MP4 or M4A: convert it to WAV or FLAC".to_owned(),
            [0x1a, 0x45, 0xdf, 0xa3, ..] => "it is WebM or Matroska: convert it to WAV or FLAC".to_owned(),
            [b'F', b'O', b'R', b'M', ..] => "it is AIFF: convert it to WAV or FLAC".to_owned(),
            [b'R', b'F', b'6', b'4', ..] => "it is RF64, a WAV file of more than 4 GiB".to_owned(),
            [] => "it is empty".to_owned(),
            _ => format!("it begins with \"{}\"", bytes[..bytes.len().min(8)].escape_ascii()),
        };
        Err(Error::Format { name: name.to_owned(), needed: FORMATS, found })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flac => "FLAC",
            Self::Mp3 => "MP3",
            Self::Ogg => "Ogg",
            Self::Wav => "WAV",
        }
    }
}
