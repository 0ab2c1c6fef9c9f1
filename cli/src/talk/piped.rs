//! The text that comes through stdin. In: a pipe, a file, or a terminal. Out: the text, which is a prompt or a part of
//! one.

use std::error::Error;
use std::io::{self, Read, stdin};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use autoplace::machine::Bytes;

use super::screen::note;
use crate::files::without_byte_order_mark;

/// Maximum number of bytes. No context has room for a longer text.
const MAX_BYTES: u64 = 256 << 20;

/// If stdin has not ended after this time, a line says that the program waits for its end. A script may have left open
/// a pipe into which nobody writes.
const SILENCE: Duration = Duration::from_secs(2);

/// The text on stdin, without line breaks at its end. `becomes` says what the text is for, if the program has to wait.
pub(super) fn piped(becomes: &'static str) -> Result<String, Box<dyn Error>> {
    let (read, text) = channel();
    thread::Builder::new()
        .name("autoplace-stdin".to_owned())
        .spawn(move || drop(read.send(read_text(stdin(), MAX_BYTES))))?;
    let text = match text.recv_timeout(SILENCE) {
        Err(RecvTimeoutError::Timeout) => {
            note(format!("waiting for the end of stdin: its text {becomes}"));
            text.recv()?
        }
        text => text?,
    };
    text.map_err(|error| format!("cannot read stdin: {error}").into())
}

/// Reads a text of at most `most` bytes.
fn read_text(from: impl Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let problem = format!("it has more than {}, for which no context has room", Bytes(most));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))?;
    Ok(without_byte_order_mark(&text).trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::repeat;

    use super::read_text;

    #[test]
    fn a_text_that_is_too_long_or_no_text_is_an_error() {
        let error = |outcome: std::io::Result<String>| outcome.unwrap_err().to_string();
        assert!(error(read_text(repeat(b'a'), 1 << 10)).contains("for which no context has room"));
        // The maximum is within a character.
        assert!(error(read_text("aé".as_bytes(), 2)).contains("more than"));
        assert!(error(read_text(&b"a\xff"[..], 9)).contains("not UTF-8"));
        assert_eq!(read_text("\u{feff}a\nb\r\n\n".as_bytes(), 9).unwrap(), "a\nb");
    }
}
