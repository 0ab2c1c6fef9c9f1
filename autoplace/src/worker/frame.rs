//! Messages as bytes: a length in four bytes, the smallest first, and as many bytes of JSON.

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;

/// Bytes of one message at most. The longest that is sent is a prompt that fills a context, or the tokens of one: a
/// million tokens are some 8 MB.
pub(super) const LONGEST: usize = 64 << 20;

/// Puts `message` at the end of `buffer`, which stays as it was after an error.
///
/// # Errors
///
/// [`Error::TooLong`]; [`Error::Protocol`] for what JSON cannot say.
pub(super) fn write(buffer: &mut Vec<u8>, message: &impl Serialize) -> Result<(), Error> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    let written = serde_json::to_writer(&mut *buffer, message).map_err(|error| Error::Protocol {
        doing: "writing a message to it",
        reason: error.to_string(),
    });
    let bytes = buffer.len() - start - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= LONGEST);
    let length = length.ok_or(Error::TooLong {
        bytes,
        limit: LONGEST,
    });
    match written.and(length) {
        Ok(length) => {
            buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            buffer.truncate(start);
            Err(error)
        }
    }
}

/// Why there is no message.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The other side is gone, in the middle of a message or between two.
    Gone,
    /// It said something else than a message.
    Senseless(String),
}

/// Reads one message; `buffer` is room to do so.
///
/// # Errors
///
/// [`Failed`]. Nothing is set aside for a length before its bytes have come.
pub(super) fn read<T: DeserializeOwned>(
    reader: &mut impl Read,
    buffer: &mut Vec<u8>,
) -> Result<T, Failed> {
    let mut length = [0; 4];
    reader
        .read_exact(&mut length)
        .map_err(|error| gone(&error))?;
    let length = u32::from_le_bytes(length);
    let fits = usize::try_from(length).is_ok_and(|length| length <= LONGEST);
    if !fits {
        return Err(Failed::Senseless(format!(
            "a message of {length} bytes, where {LONGEST} are the most"
        )));
    }
    buffer.clear();
    let read = reader.take(u64::from(length)).read_to_end(buffer);
    let read = read.map_err(|error| gone(&error))?;
    if u64::try_from(read).is_ok_and(|read| read < u64::from(length)) {
        return Err(Failed::Gone);
    }
    serde_json::from_slice(buffer).map_err(|error| Failed::Senseless(error.to_string()))
}

/// Whatever breaks a connection between two processes of one machine: the other one is not there any more.
fn gone(error: &io::Error) -> Failed {
    if error.kind() != io::ErrorKind::UnexpectedEof {
        tracing::debug!("the connection to a worker broke: {error}");
    }
    Failed::Gone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, message).unwrap();
        bytes
    }

    fn read_back<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, Failed> {
        read(&mut bytes, &mut Vec::new())
    }

    #[test]
    fn a_connection_that_ends_between_two_messages_is_gone() {
        assert!(matches!(read_back::<u32>(&[]), Err(Failed::Gone)));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_read() {
        let bytes = [0xff; 64];
        let error = read_back::<String>(&bytes).unwrap_err();
        assert!(matches!(error, Failed::Senseless(reason) if reason.contains("4294967295")));
    }

    #[test]
    fn another_message_than_expected_makes_no_sense() {
        let error = read_back::<u32>(&framed(&"text")).unwrap_err();
        assert!(matches!(error, Failed::Senseless(_)));
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        let text = "x".repeat(LONGEST);
        let mut buffer = framed(&1);
        let error = write(&mut buffer, &text).unwrap_err();
        assert_eq!(buffer, framed(&1));
        assert!(matches!(error, Error::TooLong { bytes, limit: LONGEST } if bytes == LONGEST + 2));
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(texts: Vec<String>) {
            let bytes: Vec<u8> = texts.iter().flat_map(framed).collect();
            let mut reader = &bytes[..];
            for text in &texts {
                let read: String = read(&mut reader, &mut Vec::new()).unwrap();
                prop_assert_eq!(&read, text);
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn a_message_that_is_cut_off_is_no_message(text: String, cut: prop::sample::Index) {
            let bytes = framed(&text);
            let cut = cut.index(bytes.len());
            prop_assert!(matches!(read_back::<String>(&bytes[..cut]), Err(Failed::Gone)));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            let _ = read_back::<String>(&bytes);
        }
    }
}
