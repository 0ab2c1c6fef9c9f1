//! Files of JSON that people may have written: what is wrong is said with its place.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A longer file is no plan and no machine: large ones have some 20 KiB.
const LONGEST_FILE: u64 = 4 << 20;

/// Whether a field need not be written.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The text of a file that is not longer than any of ours.
pub(crate) fn read(file: &Path) -> io::Result<String> {
    // Before it is opened: that would wait for whoever writes to a pipe.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    let read = File::open(file)?.take(LONGEST_FILE + 1).read_to_string(&mut text)?;
    if read as u64 > LONGEST_FILE {
        let problem = format!("longer than any plan or machine: more than {LONGEST_FILE} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(text)
}

/// Writes a file beside its place and moves it there: a reader finds the old file or the new one, whole. What is no
/// regular file, such as `/dev/stdout`, is written to.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    // What a link leads to, so that it stays a link.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if fs::metadata(&file).is_ok_and(|there| !there.is_file()) {
        return fs::write(file, text);
    }
    // A number that nobody else has: the standard library's only random one.
    let beside = file.with_file_name(format!(".autoplace-{:016x}", RandomState::new().build_hasher().finish()));
    let mut written = File::create_new(&beside)?;
    let moved = written.write_all(text.as_bytes()).and_then(|()| written.sync_all());
    drop(written);
    moved.and_then(|()| fs::rename(&beside, file)).inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Deserialises a document, or says which field is wrong, that its `version` is a later one than the latest known, or
/// that a string of it would move a cursor.
pub(crate) fn versioned<T>(text: &str, latest: u64, read: fn(&str) -> Result<T, String>) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        version: Option<u64>,
    }
    if has_control_character(&parse(text)?) {
        return Err("a string holds a control character".to_owned());
    }
    match parse(text)? {
        Version { version: Some(version) } if !(1..=latest).contains(&version) => {
            Err(format!("version is {version}, and this program reads up to {latest}"))
        }
        _ => read(text),
    }
}

/// Whether a string in it, or a key, holds what whoever prints it would obey.
fn has_control_character(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(char::is_control),
        Value::Array(list) => list.iter().any(has_control_character),
        Value::Object(map) => {
            map.iter().any(|(key, value)| key.contains(char::is_control) || has_control_character(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Deserialises all of a text, or says which field is wrong.
pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        if path == "." { problem.to_string() } else { format!("{path}: {problem}") }
    })?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// `Serialize` and `Deserialize` of a type that has derived them for itself (`#[serde(remote = "Self")]`). Other crates
/// have it in theirs, and serde would compile it there once more for each format. So it is read from JSON alone: from a
/// tree where the format is for people, from a text elsewhere, and so it is written there.
macro_rules! compiled_here {
    ($type:ident, $deserialize:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    return Self::serialize(self, to);
                }
                // As files are, so that one form of writing is compiled.
                serde_json::to_string_pretty(self).map_err(serde::ser::Error::custom)?.serialize(to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let read = Self::from_text(&$crate::json::taken_over(from)?);
                // The place is in the text that went over.
                read.map_err(|problem| serde::de::Error::custom(problem.split(" at line ").next().unwrap_or_default()))
            }
        }

        impl $type {
            fn from_text(text: &str) -> Result<Self, String> {
                #[derive(Deserialize)]
                struct Itself(#[serde(deserialize_with = $deserialize)] $type);
                $crate::json::parse(text).map(|Itself(it)| it)
            }
        }
    };
}
pub(crate) use compiled_here;

/// The JSON in which a type comes from another crate.
pub(crate) fn taken_over<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    if from.is_human_readable() { Ok(Value::deserialize(from)?.to_string()) } else { String::deserialize(from) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use super::{has_control_character, parse, read, write};

    #[cfg(unix)]
    #[test]
    fn what_never_ends_is_not_read_and_stays_what_it_is_when_written_to() {
        for device in ["/dev/zero", "/dev/null", "/"] {
            let error = read(device.as_ref()).unwrap_err().to_string();
            assert_eq!(error, "not a regular file", "{device}");
        }
        write("/dev/null".as_ref(), "{}").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn who_has_a_file_open_reads_all_of_it_while_another_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        for text in ["the old one", "another"] {
            fs::write(&path, "the first").unwrap();
            let mut open = fs::File::open(&path).unwrap();
            write(&path, text).unwrap();
            let mut before = String::new();
            open.read_to_string(&mut before).unwrap();
            assert_eq!((before.as_str(), read(&path).unwrap().as_str()), ("the first", text));
        }
        let files = fs::read_dir(folder.path()).unwrap();
        assert_eq!(files.count(), 1);
        assert!(write(&folder.path().join("none/plan.json"), "").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_one_and_a_file_is_for_those_whom_the_mask_allows() {
        use std::os::unix::fs::{MetadataExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [plain, written, link] = ["plain", "written", "link"].map(|it| folder.path().join(it));
        fs::write(&plain, "").unwrap();
        symlink(&written, &link).unwrap();
        write(&written, "one").unwrap();
        write(&link, "two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&written).unwrap(), "two");
        let mode = |path| fs::metadata(path).unwrap().mode();
        assert_eq!(mode(&written), mode(&plain));
    }

    #[test]
    fn a_control_character_is_found_however_it_is_written() {
        for (text, is_refused) in [
            ("{\"a\":\r\n\t\"b \\\\n \\\" \\/ \\u00e9 \\u0020 \u{e9}\"}", false),
            ("[\"\\u001b\"]", true),
            ("{\"a\": {\"\\u001B\": 1}}", true),
            ("[[\"\\u009b\"]]", true),
            ("[\"\u{9b}\"]", true),
            ("[\"\u{7f}\"]", true),
            ("[\"\\n\"]", true),
        ] {
            assert_eq!(has_control_character(&parse(text).unwrap()), is_refused, "{text:?}");
        }
    }
}
