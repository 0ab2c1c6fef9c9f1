//! Masks words that identify a person or a machine. A text flows in, and the masked text flows out.

use std::env;
use std::fs;

/// The replacement for an identifying word.
const MASK: &str = "(left out)";

/// Shorter names are not masked, because they occur in too many words and identify little.
const MIN_NAME_LENGTH: usize = 3;

/// Words that identify this user or this machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Clean {
    private: Vec<String>,
}

impl Clean {
    /// The names of the user, of the home folder and of the machine.
    pub(super) fn for_this_user() -> Self {
        let variables = ["USER", "USERNAME", "LOGNAME", "HOSTNAME", "COMPUTERNAME", "USERDOMAIN"];
        let named = variables.into_iter().filter_map(|name| env::var(name).ok());
        let home = ["HOME", "USERPROFILE"].into_iter().filter_map(|name| env::var(name).ok());
        let home = home.filter_map(|path| path.rsplit(['/', '\\']).next().map(str::to_owned));
        let host = ["/proc/sys/kernel/hostname", "/etc/hostname"].into_iter();
        let host = host.filter_map(|file| fs::read_to_string(file).ok()).map(|name| name.trim().to_owned());
        Self::new(named.chain(home).chain(host))
    }

    pub(super) fn new(private: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let private = private.into_iter().map(|name| name.as_ref().to_lowercase());
        Self { private: private.filter(|name| name.chars().count() >= MIN_NAME_LENGTH).collect() }
    }

    /// A text with identifying words masked. If the text is a path, only its last part is returned.
    pub(super) fn text(&self, text: &str) -> String {
        self.cleaned(file_of(text))
    }

    /// A pattern of tensor names with identifying words masked. The pattern's backslashes do not separate the parts of
    /// a path.
    pub(super) fn pattern(&self, text: &str) -> String {
        self.cleaned(text)
    }

    fn cleaned(&self, text: &str) -> String {
        let text = text.replace(char::is_control, " ");
        let is_between = |c: char| c.is_whitespace() || ",;()[]{}<>\"'|=".contains(c);
        let words = text.split_inclusive(is_between).map(|piece| {
            let word = piece.trim_end_matches(is_between);
            let behind = &piece[word.len()..];
            if self.identifies(word) { format!("{MASK}{behind}") } else { piece.to_owned() }
        });
        words.collect()
    }

    /// Whether a word names a user, a machine, a device's serial number, or an address of any kind.
    fn identifies(&self, word: &str) -> bool {
        let lower = word.to_lowercase();
        let mut parts = lower.split(|c: char| !c.is_alphanumeric());
        let is_private =
            self.private.contains(&lower) || parts.any(|part| self.private.iter().any(|name| name == part));
        is_private || lower.contains('@') || has_uuid(&lower) || is_address(&lower)
    }
}

/// The last part of a path. Any other text is returned unchanged.
fn file_of(text: &str) -> &str {
    let is_drive = |text: &str| text.as_bytes().get(1) == Some(&b':') && text.contains('\\');
    let is_path = text.starts_with(['/', '~', '\\']) || is_drive(text) || text.matches(['/', '\\']).count() > 1;
    match text.rsplit(['/', '\\']).next() {
        Some(last) if is_path => last,
        _ => text,
    }
}

/// Whether the word contains a UUID: groups of 8, 4, 4, 4 and 12 hexadecimal digits.
fn has_uuid(word: &str) -> bool {
    let groups: Vec<&str> = word.split('-').collect();
    let is_hex = |group: &str| group.chars().all(|c| c.is_ascii_hexdigit());
    groups
        .windows(5)
        .any(|five| five.iter().zip([8, 4, 4, 4, 12]).all(|(group, length)| group.len() == length && is_hex(group)))
}

/// Whether the word is an address of a network, of a network card or of the PCI bus.
fn is_address(word: &str) -> bool {
    let numbers = |mark: char, radix: u32| -> Option<Vec<u32>> {
        word.split(mark).map(|part| u32::from_str_radix(part, radix).ok()).collect()
    };
    let host = word.split(':').next().unwrap_or_default();
    let is_v4 = host.parse::<std::net::Ipv4Addr>().is_ok() && word.parse::<f64>().is_err();
    let is_v6 = word.matches(':').count() > 1 && word.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>().is_ok();
    let is_card = numbers(':', 16).is_some_and(|parts| parts.len() == 6 && parts.iter().all(|part| *part <= 0xff));
    let is_pci = word.split_once('.').is_some_and(|(bus, function)| {
        function.len() == 1
            && (4..=13).contains(&bus.len())
            && bus.contains(':')
            && bus.chars().all(|c| c.is_ascii_hexdigit() || c == ':')
    });
    is_v4 || is_v6 || is_card || is_pci
}

#[cfg(test)]
mod tests {
    use super::{Clean, MASK};

    #[test]
    fn identifying_words_are_masked_and_the_names_of_things_stay() {
        let clean = Clean::new(["ann", "Anns-PC", "x"]);
        for (text, expected) in [
            ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
            ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"),
            ("13th Gen Intel(R) Core(TM) i9-13900K", "13th Gen Intel(R) Core(TM) i9-13900K"),
            ("autoplace 0.1.0, llama.cpp b8288", "autoplace 0.1.0, llama.cpp b8288"),
            ("550.54.14", "550.54.14"),
            ("Annapurna 7B", "Annapurna 7B"),
            ("/home/ann/models/a b.gguf", "a b.gguf"),
            (r"C:\Users\Ann\m.gguf", "m.gguf"),
            ("model of Ann", "model of (left out)"),
            ("ann-7b", MASK),
            ("on anns-pc", "on (left out)"),
            ("GPU-01234567-89ab-cdef-0123-456789abcdef", MASK),
            ("server 192.168.0.7:50052", "server (left out)"),
            ("fe80::1", MASK),
            ("00:1a:2b:3c:4d:5e", MASK),
            ("card 0000:01:00.0", "card (left out)"),
            ("mail me@example.org now", "mail (left out) now"),
            ("a\u{7}b", "a b"),
        ] {
            assert_eq!(clean.text(text), expected, "{text}");
        }
        assert_eq!(clean.pattern(r"^blk\.(0|1)\.ffn_up\."), r"^blk\.(0|1)\.ffn_up\.");
    }
}
