//! Reads a text where somebody may have named a model instead. Bytes flow in, and a text of accepted length flows out.

use std::io::{self, Read};

/// The first bytes of every GGUF file.
const MAGIC: [u8; 4] = *b"GGUF";

/// Reads a text in UTF-8 of at most `max_bytes` bytes. A model may have many gigabytes, so a GGUF file is refused by
/// its first bytes, before the rest is read.
///
/// # Errors
///
/// [`InvalidData`](io::ErrorKind::InvalidData) for a GGUF file, and for bytes that are not UTF-8, with the position of
/// the first of them. [`FileTooLarge`](io::ErrorKind::FileTooLarge) for a longer text. Other errors are those of the
/// reader.
///
/// # Examples
///
/// ```
/// assert_eq!(autoplace_gguf::read_text(&b"{}"[..], 100)?, "{}");
/// let error = autoplace_gguf::read_text(&b"GGUF\x03\0\0\0"[..], 100).unwrap_err();
/// assert_eq!(error.to_string(), "it is a GGUF file");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_text(mut reader: impl Read, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is a GGUF file"));
    }
    // One byte more shows that the text is too long.
    reader.take(max_bytes.saturating_add(1).saturating_sub(bytes.len() as u64)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {max_bytes} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {end} is not text in UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::read_text;

    #[test]
    fn a_text_is_read_to_its_last_byte_and_no_further() {
        for (text, most) in [("", 0), ("abc", 3), ("abcdef", 6), ("GGU", 9)] {
            assert_eq!(read_text(text.as_bytes(), most).unwrap(), text);
        }
        for (bytes, most, problem) in [
            (&b"abc"[..], 2, "more than 2 bytes"),
            (b"abcdef", 5, "more than 5 bytes"),
            (b"abcde\xff", 9, "byte 5 is not text in UTF-8"),
            (b"GGUF", 2, "it is a GGUF file"),
        ] {
            assert_eq!(read_text(bytes, most).unwrap_err().to_string(), problem);
        }
        assert_eq!(read_text(&b"abcdef"[..], u64::MAX).unwrap(), "abcdef");
    }
}
