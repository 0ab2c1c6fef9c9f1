//! Files that a message names with `@`. In: a message. Out: the message with the texts of these files, and its images
//! and sounds.

use std::env::home_dir;
use std::fs;
use std::path::{Path, PathBuf};

use autoplace::chat::Media;
use autoplace::machine::Bytes;

use super::media;
use crate::files::{in_file, without_byte_order_mark};

/// A message with the texts of its files, and its images and sounds.
#[derive(Debug)]
pub(super) struct WithFiles {
    pub(super) text: String,
    pub(super) media: Vec<(PathBuf, Media)>,
}

/// Reads the files that a message names. `most` is the maximum number of bytes for each text.
pub(super) fn with_files(message: &str, most: u64) -> Result<WithFiles, String> {
    let (mut text, mut files, mut rest) = (String::new(), String::new(), message);
    let mut seen = Vec::new();
    while let Some((before, after)) = rest.split_once('@') {
        text += before;
        let begins = text.is_empty() || text.ends_with(char::is_whitespace);
        let (name, behind) = if begins { name(after) } else { ("", after) };
        if begins && after.starts_with('@') {
            text.push('@');
            rest = &after[1..];
        } else if name.is_empty() {
            text.push('@');
            rest = after;
        } else {
            let path = path(name);
            match media::named(&path) {
                // If decoding fails, the error already contains the file's name.
                Some(media) => seen.push((path, media.map_err(|error| error.to_string())?)),
                None => files += &quoted(name, &read(name, most)?),
            }
            text += name;
            rest = behind;
        }
    }
    Ok(WithFiles { text: text + rest + &files, media: seen })
}

/// The name that follows an `@`, and the text that follows the name.
fn name(text: &str) -> (&str, &str) {
    if let Some(quoted) = text.strip_prefix('"').and_then(|text| text.split_once('"')) {
        return quoted;
    }
    let word = text.split(char::is_whitespace).next().unwrap_or_default();
    // Punctuation at the end belongs to the sentence, unless there is a file with that name.
    let name = match path(word).exists() {
        true => word,
        false => word.trim_end_matches(['.', ',', ';', ':', '?', '!', ')']),
    };
    text.split_at(name.len())
}

/// Replaces `~` by the home folder, because no shell has done that here.
fn path(name: &str) -> PathBuf {
    match (name.strip_prefix("~/"), home_dir()) {
        (Some(name), Some(home)) => home.join(name),
        _ => name.into(),
    }
}

fn read(name: &str, most: u64) -> Result<String, String> {
    let path = path(name);
    let found = fs::metadata(&path).map_err(|error| in_file(Path::new(name), error))?;
    // Only regular files are read. Reading a pipe or a device might never end.
    let wrong = match (found.is_file(), found.len() > most) {
        (false, _) => "it is not a regular file".to_owned(),
        (true, true) => format!("the file has {}, which is more text than the context can hold", Bytes(found.len())),
        (true, false) => match fs::read(&path).map(String::from_utf8) {
            Ok(Ok(text)) if !text.contains('\0') => return Ok(without_byte_order_mark(&text).to_owned()),
            Ok(_) => "it is a binary file, not text".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    Err(in_file(Path::new(name), wrong))
}

/// The text between two lines of backticks. Each of the two lines is longer than any row of backticks in the text.
fn quoted(name: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("\n\n{name}:\n{fence}\n{text}{end}{fence}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::with_files;

    #[test]
    fn files_follow_the_message_that_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (plain, spaced) = (file("a.txt", b"one\ntwo"), file("b c.md", b"```\nx\n```\n"));
        let said = with_files(&format!("See @{plain}, and\n@\"{spaced}\"!"), 100).unwrap().text;
        let files = format!("{plain}:\n```\none\ntwo\n```\n\n{spaced}:\n````\n```\nx\n```\n````");
        assert_eq!(said, format!("See {plain}, and\n{spaced}!\n\n{files}"));
        // A byte order mark is no text.
        let marked = file("e.txt", "\u{feff}one".as_bytes());
        let said = with_files(&format!("@{marked}"), 100).unwrap().text;
        assert_eq!(said, format!("{marked}\n\n{marked}:\n```\none\n```"));
        for (text, sent) in [("a@b.c @", "a@b.c @"), ("@@Override @...", "@Override @..."), ("no", "no")] {
            assert_eq!(with_files(text, 100).unwrap().text, sent);
        }

        let binary = file("d.bin", b"a\0b");
        let folder = folder.path().to_str().unwrap();
        for (name, most, word) in [
            ("/nowhere/at/all", 100, "/nowhere/at/all: "),
            (&plain, 6, "the file has 7 B, which is more text than the context can hold"),
            (&binary, 100, "binary"),
            (folder, 100, "is not a regular file"),
        ] {
            let error = with_files(&format!("hi @{name}"), most).unwrap_err();
            assert!(error.contains(word), "{name}: {error}");
        }
    }
    #[cfg(feature = "media")]
    #[test]
    fn pictures_and_sounds_come_before_the_message_that_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dot.bmp");
        // A picture of one white pixel with 24 bits.
        let mut file = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
        file.resize(54, 0);
        file.extend([255, 255, 255, 0]);
        fs::write(&path, file).unwrap();
        let named = path.to_str().unwrap();
        let said = with_files(&format!("What is @{named}?"), 100).unwrap();
        assert_eq!(said.text, format!("What is {named}?"));
        assert_eq!(said.media[0].1.rgb(), Some((1, 1, &[255; 3][..])));
        fs::write(&path, "text").unwrap();
        let error = with_files(&format!("@{named}"), 100).unwrap_err();
        assert!(error.contains("dot.bmp"), "{error}");
    }
}
