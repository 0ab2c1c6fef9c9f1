//! JSON files that people may have written, so errors state where the problem is.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::de::StrRead;

use crate::gguf::read_text;

/// The longest accepted file, in bytes: a large plan or machine has about 20 KiB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Whether a field has its default value, and can be left out of the file.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The text of a file of accepted length. `expected` is the sentence that says which file it should be; it ends the
/// error for a file of another kind.
pub(crate) fn read(file: &Path, expected: &str) -> io::Result<String> {
    // This is checked before the file is opened, because opening a pipe would wait for a writer.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    read_text(File::open(file)?, MAX_FILE_BYTES).map_err(|error| {
        let kind = error.kind();
        match kind {
            io::ErrorKind::InvalidData => io::Error::new(kind, format!("{error}; {expected}")),
            io::ErrorKind::FileTooLarge => {
                io::Error::new(kind, format!("{error}, which no saved plan or machine has; {expected}"))
            }
            _ => error,
        }
    })
}

/// Writes a temporary file into the folder of the destination and renames it, so that a reader sees either the whole
/// old file or the whole new one. The permissions of an existing file are kept. A destination that is not a regular
/// file, such as `/dev/stdout`, is written directly.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    // If the destination is a symbolic link, its target is replaced, so that the link stays.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let there = fs::metadata(&file).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return fs::write(file, text);
    }
    // The random name comes from the standard library's only random source.
    let beside = file.with_file_name(format!(".autoplace-{:016x}", RandomState::new().build_hasher().finish()));
    let mut written = File::create_new(&beside)?;
    // Some file systems refuse to set permissions, even if the permissions do not change.
    let permissions = there.map(|there| there.permissions());
    let others = permissions.filter(|old| written.metadata().is_ok_and(|new| new.permissions() != *old));
    let set = others.map_or(Ok(()), |old| written.set_permissions(old));
    let whole = set.and_then(|()| written.write_all(text.as_bytes())).and_then(|()| written.sync_all());
    drop(written);
    whole.and_then(|()| fs::rename(&beside, file)).inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Deserialises a document. Fails for a wrong field, a `version` above `latest`, and a string with a control character.
/// The error names the problem. `expected` is the sentence that says which document it should be; it ends the error for
/// a text that cannot be deserialised.
pub(crate) fn versioned<T>(
    text: &str,
    expected: &str,
    latest: u64,
    read: fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let wrong = |problem: String| format!("{problem}; {expected}");
    let document = parse(text, |value| Value::deserialize(value)).map_err(wrong)?;
    if has_control_character(&document) {
        return Err("a string contains a control character".to_owned());
    }
    match document.get("version") {
        None | Some(Value::Null) => read(text).map_err(wrong),
        Some(Value::Number(number)) if number.as_u64().is_some_and(|version| (1..=latest).contains(&version)) => {
            read(text).map_err(wrong)
        }
        Some(Value::Number(number)) => {
            Err(format!("version is {number}, but this program reads only versions up to {latest}"))
        }
        Some(_) => Err("version is not a number".to_owned()),
    }
}

/// Whether a string or key contains a control character, which a terminal would obey.
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

/// Deserialises a whole text. The error names the wrong field.
pub(crate) fn parse<'a, T>(
    text: &'a str,
    read: impl FnOnce(&mut serde_json::Deserializer<StrRead<'a>>) -> serde_json::Result<T>,
) -> Result<T, String> {
    let mut document = serde_json::Deserializer::from_str(text);
    let value = read(&mut document).and_then(|value| document.end().map(|()| value));
    value.map_err(|error| {
        let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let read = text.as_bytes().get(..before + error.column()).unwrap_or(text.as_bytes());
        // At a syntax error, the text read so far ends with the wrong byte. At an error in an object's last value, the
        // text may end with the object's closing brace.
        let problem = error.to_string();
        // If a key is evaluated only after the whole object was read, the message begins with a point and the key.
        let has_key = problem.starts_with('.');
        let is_past = error.is_syntax() || read.ends_with(b"}") && !has_key && !problem.starts_with("missing field");
        let place = place(read.split_last().filter(|_| is_past).map_or(read, |(_, before)| before));
        match (place.is_empty(), has_key) {
            (true, _) => problem.trim_start_matches('.').to_owned(),
            (false, true) => format!("{place}{problem}"),
            (false, false) => format!("{place}: {problem}"),
        }
    })
}

/// The path of the value in which the beginning of a document ends: `gpus[0].free`. (The crate `serde_path_to_error`
/// would add a tenth to the compile time, because it compiles every type again with its own readers.)
fn place(read: &[u8]) -> String {
    enum Open {
        Object(String),
        Array(usize),
    }
    let (mut path, mut text) = (Vec::new(), Vec::new());
    let mut bytes = read.iter();
    while let Some(byte) = bytes.next() {
        match (byte, path.last_mut()) {
            (b'"', _) => {
                text.clear();
                while let Some(&byte) = bytes.next().filter(|&&byte| byte != b'"') {
                    text.push(byte);
                    if byte == b'\\' {
                        text.extend(bytes.next());
                    }
                }
            }
            (b':', Some(Open::Object(key))) => *key = format!(".{}", String::from_utf8_lossy(&text)),
            (b',', Some(Open::Object(key))) => key.clear(),
            (b',', Some(Open::Array(index))) => *index += 1,
            (b'{', _) => path.push(Open::Object(String::new())),
            (b'[', _) => path.push(Open::Array(0)),
            (b'}' | b']', _) => drop(path.pop()),
            _ => {}
        }
    }
    let steps = path.into_iter().map(|open| match open {
        Open::Object(key) => key,
        Open::Array(index) => format!("[{index}]"),
    });
    steps.collect::<String>().trim_start_matches('.').to_owned()
}

/// Implements `Serialize` and `Deserialize` for a type that derives them under `#[serde(remote = "Self")]`. Without
/// this, serde would compile the type's code again in each dependent crate and for each format. The code of this macro
/// always converts through JSON: through a tree if the format is human-readable, otherwise through text.
macro_rules! compiled_here {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    return Self::serialize(self, to);
                }
                self.to_text().map_err(serde::ser::Error::custom)?.serialize(to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let read = Self::from_text(&$crate::json::taken_over(from)?);
                // The line and column refer to the intermediate text.
                read.map_err(|problem| serde::de::Error::custom(problem.split(" at line ").next().unwrap_or_default()))
            }
        }

        impl $type {
            // The text has the layout of the files, so that only one formatter is compiled.
            fn to_text(&self) -> serde_json::Result<String> {
                serde_json::to_string_pretty(self)
            }

            fn from_text(text: &str) -> Result<Self, String> {
                $crate::json::parse(text, |value| Self::deserialize(value))
            }
        }
    };
}
pub(crate) use compiled_here;

/// Reads a value with another crate's deserialiser, and returns the value as JSON text.
pub(crate) fn taken_over<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    if from.is_human_readable() { Ok(Value::deserialize(from)?.to_string()) } else { String::deserialize(from) }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn devices_are_not_read_and_stay_devices_when_written_to() {
        for device in ["/dev/zero", "/dev/null", "/"] {
            let error = read(device.as_ref(), "").unwrap_err().to_string();
            assert_eq!(error, "not a regular file", "{device}");
        }
        write("/dev/null".as_ref(), "{}").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn an_open_file_stays_readable_while_another_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        for text in ["the old one", "another"] {
            fs::write(&path, "the first").unwrap();
            let mut open = File::open(&path).unwrap();
            write(&path, text).unwrap();
            let mut before = String::new();
            open.read_to_string(&mut before).unwrap();
            assert_eq!((before.as_str(), read(&path, "").unwrap().as_str()), ("the first", text));
        }
        let files = fs::read_dir(folder.path()).unwrap();
        assert_eq!(files.count(), 1);
        assert!(write(&folder.path().join("none/plan.json"), "").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_survive_a_write() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [plain, written, link] = ["plain", "written", "link"].map(|name| folder.path().join(name));
        fs::write(&plain, "").unwrap();
        symlink(&written, &link).unwrap();
        write(&written, "one").unwrap();
        let mode = |path| fs::metadata(path).unwrap().mode();
        assert_eq!(mode(&written), mode(&plain));
        fs::set_permissions(&written, fs::Permissions::from_mode(0o600)).unwrap();
        write(&link, "two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&written, "").unwrap(), "two");
        assert_eq!(mode(&written) & 0o777, 0o600);
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
            let value = parse(text, |value| Value::deserialize(value)).unwrap();
            assert_eq!(has_control_character(&value), is_refused, "{text:?}");
        }
    }

    #[test]
    fn errors_name_the_path_of_the_wrong_value() {
        for (text, place) in [
            (r#"{"a": [[1], {"b\"é": 2, "c": x"#, "a[1].c: "),
            (r#"{"a": [{"b\"\\": {}}, 3, "#, "a[2]: "),
            ("{\n\"a\": {\n  \"]\": [0,\n\n  .5]", "a.][1]: "),
            (r#"{"a": {"b": }"#, "a.b: "),
            ("{} [", "trailing"),
            (r#"{"a": 1, "#, "EOF"),
            ("", "EOF"),
        ] {
            let error = parse(text, |value| Value::deserialize(value)).unwrap_err();
            assert!(error.starts_with(place), "{text}: {error}");
        }
    }
}
