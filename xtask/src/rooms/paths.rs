//! The paths in a Rust file. In: its text. Out: the paths that begin with `crate`, `super`, `self` or the names of its
//! own modules, each with its line; and the re-exports of the file.

/// A path, with groups expanded: `crate::{a, b::C}` is `crate::a` and `crate::b::C`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The number of the line, counted from 1.
    pub(super) line: usize,
    /// The names in the path. `crate`, `super` or `self` comes first, and `*` stands for everything in a module.
    pub(super) names: Vec<String>,
    /// Whether the file re-exports the path (`pub use`) instead of using it.
    pub(super) is_exported: bool,
    /// The name of the item in this file.
    pub(super) alias: String,
}

/// The paths of a file, except for paths in comments and in the tests at the end.
pub(super) fn named(text: &str) -> Vec<Named> {
    let code = without_comments(without_tests(text));
    let modules = modules(&code);
    let mut found = Vec::new();
    let mut begins_word = true;
    for (at, letter) in code.char_indices() {
        let is_name = is_of_name(letter);
        // A path in a visibility such as `pub(in ...)` names a module, but imports nothing.
        let is_inside = code[..at].ends_with("::") || code[..at].ends_with("pub(in ");
        if is_name && begins_word && !is_inside {
            let word: String = code[at..].chars().take_while(|letter| is_of_name(*letter)).collect();
            let is_first = ["crate", "super", "self"].contains(&word.as_str()) || modules.contains(&word);
            if is_first && code[at + word.len()..].starts_with("::") {
                let mut names = Vec::new();
                if modules.contains(&word) {
                    names.push("self".to_owned());
                }
                let is_exported = is_exported(&code[..at]);
                let line = 1 + code[..at].matches('\n').count();
                let mut expanded = Vec::new();
                expand(&code[at..], names, &mut expanded);
                found.extend(expanded.into_iter().map(|(names, alias)| Named { line, names, is_exported, alias }));
            }
        }
        begins_word = !is_name;
    }
    found
}

/// Whether the code before a path is `pub use` or `pub(..) use`.
fn is_exported(before: &str) -> bool {
    let statement = before.rsplit([';', '{', '}']).next().unwrap_or_default().trim_end();
    let Some(visibility) = statement.strip_suffix("use").map(str::trim_end) else { return false };
    visibility.ends_with("pub") || (visibility.ends_with(')') && visibility.contains("pub("))
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The modules that the file declares and that have their own files: `mod name;`.
fn modules(code: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once("mod "));
    let is_declaration = |before: &str| before.is_empty() || before.starts_with("pub");
    declared.filter(|(before, _)| is_declaration(before.trim())).map(|(_, name)| name.trim().to_owned()).collect()
}

/// Reads the path at the beginning of `code`, and adds its expansions after `before`, each with its alias. Returns the
/// rest of the code.
fn expand<'c>(code: &'c str, mut before: Vec<String>, found: &mut Vec<(Vec<String>, String)>) -> &'c str {
    let mut rest = code.trim_start();
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            loop {
                group = group.trim_start();
                if let Some(rest) = group.strip_prefix('}') {
                    return rest;
                }
                if group.is_empty() {
                    return group;
                }
                group = expand(group, before.clone(), found).trim_start();
                group = group.strip_prefix(',').unwrap_or(group);
            }
        }
        if let Some(rest) = rest.strip_prefix('*') {
            before.push("*".to_owned());
            found.push((before, "*".to_owned()));
            return rest;
        }
        let end = rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len());
        if end == 0 {
            // This is not a path: `crate::<T>`, or a macro's fragment.
            let skipped = rest.chars().next().map_or(0, char::len_utf8);
            return &rest[skipped..];
        }
        let name = &rest[..end];
        rest = &rest[end..];
        // In a group, `self` is the module itself.
        if name != "self" || before.is_empty() {
            before.push(name.to_owned());
        }
        match rest.strip_prefix("::") {
            Some(next) => rest = next,
            None => break,
        }
    }
    let mut alias = before[before.len() - 1].clone();
    if let Some(renamed) = rest.trim_start().strip_prefix("as ") {
        let renamed = renamed.trim_start();
        let end = renamed.find(|letter| !is_of_name(letter)).unwrap_or(renamed.len());
        alias = renamed[..end].to_owned();
        rest = &renamed[end..];
    }
    found.push((before, alias));
    rest
}

/// The text before the module of tests at the end.
fn without_tests(text: &str) -> &str {
    let tests = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
    let is_module = |at: &usize| text[*at..].lines().nth(1).is_some_and(|line| line.ends_with("mod tests {"));
    let mut tests = tests.filter(is_module);
    tests.next().map_or(text, |at| &text[..at])
}

/// The code with blanks in place of comments. The line numbers stay the same.
fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::named;

    fn paths(text: &str) -> Vec<(usize, String)> {
        named(text).into_iter().map(|path| (path.line, path.names.join("::"))).collect()
    }

    #[test]
    fn paths_are_found_in_code_and_not_in_comments_or_tests() {
        let text = "//! crate::a\nuse crate::b::C;\nuse crate::{d, e::{self, F}};\n    crate::g::h(); // crate::i\n\
            let x = super::y(self.z);\n#[cfg(test)]\nmod tests {\n    use crate::j;\n";
        let expected = [
            (2, "crate::b::C"),
            (3, "crate::d"),
            (3, "crate::e"),
            (3, "crate::e::F"),
            (4, "crate::g::h"),
            (5, "super::y"),
        ];
        assert_eq!(paths(text), expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn shared_tests_and_visibilities_are_not_imports() {
        let text = "pub(in crate::a) const A: u8 = 0;\n#[cfg(test)]\npub(super) mod tests {\n    use crate::b;\n}\n";
        assert_eq!(paths(text), []);
    }

    #[test]
    fn the_modules_of_a_file_are_also_paths_and_re_exports_are_marked() {
        let text = "mod a;\npub(crate) mod b;\npub use a::{B, c as D};\nuse b::E;\nfn f() { b::g(x::a::h) }\n";
        let found = named(text);
        let seen: Vec<(String, bool, &str)> =
            found.iter().map(|path| (path.names.join("::"), path.is_exported, path.alias.as_str())).collect();
        let expected = [
            ("self::a::B", true, "B"),
            ("self::a::c", true, "D"),
            ("self::b::E", false, "E"),
            ("self::b::g", false, "g"),
        ];
        assert_eq!(seen, expected.map(|(path, is_exported, alias)| (path.to_owned(), is_exported, alias)));
    }
}
