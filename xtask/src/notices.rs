//! `THIRD-PARTY-NOTICES`: the licences of all code of others in the programs that we pack.
//!
//! In: cargo's tree of the packages that are linked into the programs, the licence files in their sources, the notices
//! of llama.cpp, and those of Rust's standard library. Out: one text, which has every licence file word for word.
//!
//! We do not use cargo-about, which compares a package's files with the texts of known licences. Without a network,
//! version 0.9 silently writes a licence's template, without a copyright line, if it recognises none of the files, and
//! it leaves out files such as NOTICE and COPYRIGHT. Here, each licence file is taken as it is, and a package without
//! one is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::gpu_bundle::toolchain::TARGET;
use crate::tree;
use crate::workspace::{Workspace, output};

/// The file's name in archives and packages.
pub(crate) const FILE: &str = "THIRD-PARTY-NOTICES";

/// The notices of llama.cpp and of the code in llama.cpp that others wrote.
const LLAMA_CPP: &str = "llama-sys/LICENSE-llama.cpp";

/// The notices of Rust's standard library, in the folder of the compiler.
const STANDARD_LIBRARY: &str = "share/doc/rust/COPYRIGHT-library.html";

/// Packages that were published without a licence file, and the licence of their repository.
const ELSEWHERE: [(&str, Elsewhere); 4] = [
    ("jsonschema-regex", Elsewhere::Package("jsonschema")),
    ("jsonschema-value", Elsewhere::Package("jsonschema")),
    ("uuid-simd", Elsewhere::File("xtask/dist/licences/nugine-simd.txt")),
    ("vsimd", Elsewhere::File("xtask/dist/licences/nugine-simd.txt")),
];

/// The place of a licence that a package lacks.
#[derive(Clone, Copy)]
enum Elsewhere {
    /// Another package of the same repository, whose licence files apply.
    Package(&'static str),
    /// A copy of the repository's licence in our repository.
    File(&'static str),
}

/// Beginnings of the names of licence files and of their folders, in lower case.
const NAMES: [&str; 6] = ["licen", "copying", "copyright", "notice", "unlicense", "patents"];

/// Extensions of files that are no licences, whatever their names.
const CODE: [&str; 11] = ["c", "h", "hbs", "html", "json", "py", "rs", "sh", "toml", "yaml", "yml"];

/// Folders whose files are not compiled into a program.
const NOT_COMPILED: [&str; 5] = [".github", "benches", "examples", "fuzz", "tests"];

/// Packages with these features, without default features, for x86-64 Linux.
pub(crate) struct Selection<'a> {
    pub(crate) packages: &'a [&'a str],
    pub(crate) features: &'a [&'a str],
}

/// A package of others that is linked into a program.
struct Package {
    name: String,
    version: String,
    /// The SPDX expression in its Cargo.toml.
    licence: String,
    /// The folder of its source.
    folder: PathBuf,
}

/// Writes the notices of the selected programs. `more` are further parts, each with its title. Returns the packages in
/// the form `name version`.
pub(crate) fn write(
    workspace: &Workspace,
    path: &Path,
    selection: &Selection,
    more: &[(&str, String)],
) -> Result<BTreeSet<String>> {
    let packages = linked(workspace, selection)?;
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    // A program with `prebuilt-runtime` has only the bindings that were made from llama.cpp's headers.
    let mut parts =
        vec![("llama.cpp, or bindings that were made from its headers", read(&workspace.root.join(LLAMA_CPP))?)];
    let compiler = output(Command::new("rustc").current_dir(&workspace.root).args(["--print", "sysroot"]))?;
    let library = read(&Path::new(compiler.trim()).join(STANDARD_LIBRARY))?;
    parts.push(("Rust's standard library", without_tags(&library)));
    parts.extend(more.iter().map(|(title, text)| (*title, text.clone())));
    let text = text(&workspace.root, &packages, &parts)?;
    tree::write(path, text.as_bytes())?;
    println!("notices: {}: {} packages, {} bytes", path.display(), packages.len(), text.len());
    Ok(packages.iter().map(|package| format!("{} {}", package.name, package.version)).collect())
}

/// The packages of others that are linked into the selected programs, or that write code for them (macros).
fn linked(workspace: &Workspace, selection: &Selection) -> Result<Vec<Package>> {
    let mut tree = workspace.cargo(&["tree", "--locked", "--no-default-features", "--edges=normal", "--prefix=none"]);
    tree.args(["--format={p}", "--features", &selection.features.join(","), "--target", TARGET]);
    let tree = output(tree.args(selection.packages.iter().flat_map(|name| ["--package", name])))?;
    let mut names: BTreeSet<String> = tree.lines().filter_map(name_and_version).collect();

    // Without `--all-features`, packages would be missing that only a feature needs.
    let mut metadata = workspace.cargo(&["metadata", "--locked", "--format-version=1", "--all-features"]);
    let metadata: Value = serde_json::from_str(&output(metadata.args(["--filter-platform", TARGET]))?)?;
    let described = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut packages = Vec::new();
    for package in described {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let is_ours = package["source"].is_null();
        let (name, version) = (text("name"), text("version"));
        if !names.remove(&format!("{name} {version}")) || is_ours {
            continue;
        }
        // The notices say that the sources are on crates.io.
        ensure!(text("source").contains("crates.io"), "{name} {version} comes from {}", package["source"]);
        let manifest = PathBuf::from(text("manifest_path"));
        let folder = manifest.parent().context("a manifest lies in a folder")?.to_owned();
        packages.push(Package { name, version, licence: text("license"), folder });
    }
    ensure!(names.is_empty() && !packages.is_empty(), "cargo metadata does not describe {names:?} of cargo tree");
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

/// Name and version, such as `serde 1.0.0`, in a line of `cargo tree`, such as `serde v1.0.0 (proc-macro)`.
fn name_and_version(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
}

/// The whole text: the list of packages, the parts, and each licence file once.
fn text(root: &Path, packages: &[Package], parts: &[(&str, String)]) -> Result<String> {
    let mut numbers = BTreeMap::new();
    let mut texts: Vec<String> = Vec::new();
    let mut list = String::new();
    for package in packages {
        let mut of_package = Vec::new();
        for licence in licences(root, packages, package)? {
            let number = *numbers.entry(licence.clone()).or_insert_with(|| {
                texts.push(licence);
                texts.len()
            });
            of_package.push(format!("[{number}]"));
        }
        let Package { name, version, licence, .. } = package;
        let licence = if licence.is_empty() { "its own licence" } else { licence };
        list += &format!("{name} {version}: {licence}: {}\n", of_package.join(" "));
    }

    let mut whole = format!(
        "Third-party notices of autoplace {}\n\n\
         autoplace itself is under MIT or Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). Its programs contain code of \
         others:\nthe Rust packages of the first list, and that of the other parts. Numbers in brackets refer to the \
         texts at the end.\nThe source of a package is at https://crates.io/crates/NAME/VERSION.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut part = |title: &str, text: &str| {
        whole += &format!("{}\n{title}\n\n{}\n\n", "=".repeat(80), text.trim_matches('\n'));
    };
    part("Rust packages", &list);
    part("Source code under the Mozilla Public License 2.0", &under_mozillas(packages));
    for (title, text) in parts {
        part(title, text);
    }
    for (index, licence) in texts.iter().enumerate() {
        part(&format!("[{}]", index + 1), licence);
    }
    Ok(whole)
}

/// Where the source of packages under MPL-2.0 is. Section 3.2 of the licence requires that a program says so.
fn under_mozillas(packages: &[Package]) -> String {
    let mut text = String::from("The program contains these packages unchanged. Their source is at\n");
    for Package { name, version, .. } in packages.iter().filter(|package| package.licence.contains("MPL-2.0")) {
        text += &format!("https://crates.io/api/v1/crates/{name}/{version}/download\n");
    }
    text
}

/// The licence files of a package, or those that [`ELSEWHERE`] names for it. Fails if there are none.
fn licences(root: &Path, packages: &[Package], package: &Package) -> Result<Vec<String>> {
    let own = own_licences(&package.folder)?;
    if !own.is_empty() {
        return Ok(own);
    }
    let Package { name, version, licence, folder } = package;
    match ELSEWHERE.iter().find(|rule| rule.0 == name).map(|rule| rule.1) {
        Some(Elsewhere::File(path)) => {
            let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
            Ok(vec![tidy(&text)])
        }
        Some(Elsewhere::Package(other)) => {
            let other = packages.iter().find(|package| package.name == other).with_context(|| {
                format!(
                    "{name} {version} takes its licence from {other}, which is not linked: see xtask/src/notices.rs"
                )
            })?;
            own_licences(&other.folder)
        }
        None => bail!(
            "{name} {version} ({licence}) has no licence file in {}: name the place of its licence in \
             xtask/src/notices.rs",
            folder.display()
        ),
    }
}

fn own_licences(folder: &Path) -> Result<Vec<String>> {
    let files = tree::files(folder)?.into_iter().filter(|file| is_licence(file));
    let texts = files.map(|file| {
        let bytes = fs::read(folder.join(&file)).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(tidy(&String::from_utf8_lossy(&bytes)))
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    Ok(texts.into_iter().filter(|text| !text.trim().is_empty()).collect())
}

/// Whether the file, or one of its folders, is named as licences are.
fn is_licence(path: &Path) -> bool {
    let names = path.iter().map(|name| name.to_string_lossy().to_lowercase());
    let names: Vec<String> = names.collect();
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    names.iter().any(|name| NAMES.iter().any(|begin| name.starts_with(begin)))
        && !names.iter().any(|name| NOT_COMPILED.contains(&name.as_str()))
        && !CODE.contains(&extension.as_str())
}

/// The text with Unix line ends and without white space at the ends of lines, so that equal licences are equal.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.trim_start_matches('\u{feff}').lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// The text of a page of HTML.
fn without_tags(page: &str) -> String {
    let mut text = String::new();
    for part in page.split('<') {
        text += part.split_once('>').map_or(part, |(_, after)| after);
    }
    for (entity, character) in [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">")] {
        text = text.replace(entity, character);
    }
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim_end) {
        if !line.is_empty() || lines.last().is_some_and(|last| !last.is_empty()) {
            lines.push(line);
        }
    }
    lines.join("\n").replace("&#38;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dist, source};

    fn folder(name: &str) -> PathBuf {
        tree::afresh(std::env::temp_dir().join(format!("autoplace-xtask-{name}-{}", std::process::id()))).unwrap()
    }

    fn package(name: &str, licence: &str, folder: &Path) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.2.3".to_owned(),
            licence: licence.to_owned(),
            folder: folder.into(),
        }
    }

    #[test]
    fn a_package_without_a_licence_file_and_without_a_rule_is_an_error_that_names_it() {
        let empty = folder("without-licence");
        tree::write(&empty.join("src/license.rs"), b"pub struct License;").unwrap();
        let packages = [package("nameless", "MIT", &empty)];
        let error = text(Path::new(""), &packages, &[]).unwrap_err().to_string();
        assert!(error.starts_with("nameless 1.2.3 (MIT) has no licence file in "), "{error}");
        fs::remove_dir_all(empty).unwrap();
    }

    #[test]
    fn every_licence_file_is_in_the_text_and_equal_ones_once() {
        let all = folder("with-licences");
        for (path, text) in [
            ("one/LICENSE-MIT", "Copyright (c) One\r\n\r\nPermission"),
            ("one/src/vendor/COPYING.md", "Copyright (c) Two"),
            ("one/tests/LICENSE", "not compiled"),
            ("two/LICENCE.txt", "Copyright (c) One\n\nPermission\n"),
            ("two/NOTICE", "This product contains two."),
        ] {
            tree::write(&all.join(path), text.as_bytes()).unwrap();
        }
        let packages = [package("one", "MIT", &all.join("one")), package("two", "MPL-2.0", &all.join("two"))];
        let whole = text(Path::new(""), &packages, &[("A part", "its text".to_owned())]).unwrap();
        assert!(whole.contains("one 1.2.3: MIT: [1] [2]\ntwo 1.2.3: MPL-2.0: [1] [3]\n"), "{whole}");
        assert_eq!(whole.matches("Copyright (c) One\n\nPermission\n").count(), 1, "{whole}");
        assert!(whole.contains("A part\n\nits text\n") && !whole.contains("not compiled"), "{whole}");
        let sources: Vec<&str> = whole.lines().filter(|line| line.ends_with("/download")).collect();
        assert_eq!(sources, ["https://crates.io/api/v1/crates/two/1.2.3/download"]);
        fs::remove_dir_all(all).unwrap();
    }

    #[test]
    fn the_notices_of_the_program_name_each_package_and_no_rule_is_unused() {
        let workspace = Workspace::find().unwrap();
        let features = dist::features(&workspace).unwrap();
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        let packages = linked(&workspace, &Selection { packages: &["autoplace-cli"], features: &features }).unwrap();
        let whole = text(&workspace.root, &packages, &[]).unwrap();
        for package in &packages {
            let Package { name, version, licence, .. } = package;
            assert!(whole.contains(&format!("\n{name} {version}: {licence}: [")), "{name} {version}");
        }
        // `clap_mangen` is of the feature `man`, `symphonia` of `media`, and `libloading` of `prebuilt-runtime`. A
        // build script uses `cc`.
        let has = |name: &str| packages.iter().any(|package| package.name == name);
        for (name, linked) in [("clap_mangen", true), ("symphonia", true), ("libloading", true), ("cc", false)] {
            assert_eq!(has(name), linked, "{name}");
        }
        for (name, _) in ELSEWHERE {
            let package = packages.iter().find(|package| package.name == name);
            let package = package.unwrap_or_else(|| panic!("{name} is no part of the program any more"));
            assert!(own_licences(&package.folder).unwrap().is_empty(), "{name} has a licence file now");
        }
    }

    #[test]
    fn the_tags_of_a_page_are_left_out() {
        let page = "<h1>Notices</h1>\n\n\n  \n<pre>a &#60;b&#62; &#34;c&#34;</pre>\n";
        assert_eq!(without_tags(page), "Notices\n\na <b> \"c\"");
    }

    /// Folders of llama.cpp's source that none of our builds compiles.
    const NOT_BUILT: [&str; 4] =
        ["ggml/src/ggml-cpu/kleidiai", "ggml/src/ggml-cpu/spacemit", "tools/mtmd/legacy-models", "vendor"];

    #[test]
    fn llama_cpps_notices_name_each_holder_of_a_copyright_in_the_source_that_we_build() {
        let workspace = Workspace::find().unwrap();
        let notices = fs::read_to_string(workspace.root.join(LLAMA_CPP)).unwrap();
        let root = source::find(&workspace).unwrap();
        let mut holders = BTreeSet::new();
        for file in tree::files(&root).unwrap() {
            if !source::is_published(&file) || NOT_BUILT.iter().any(|folder| file.starts_with(folder)) {
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(root.join(&file)).unwrap()).into_owned();
            for holder in text.lines().filter_map(holder) {
                assert!(notices.contains(&holder), "{LLAMA_CPP} does not name {holder}, of {}", file.display());
                holders.insert(holder);
            }
        }
        assert!(holders.contains("Mozilla Foundation") && holders.contains("The ggml authors"), "{holders:?}");
    }

    /// The holder in a line such as `// Copyright (c) 2023-2026 The ggml authors`.
    fn holder(line: &str) -> Option<String> {
        let (_, after) = line.split_once("Copyright ")?;
        let after = after.trim_start_matches(|c: char| "(c)C©".contains(c));
        let name = after.trim_start_matches(|c: char| c.is_ascii_digit() || ",- ".contains(c));
        // Text about copyrights has no year.
        (name.len() < after.len() && after.contains(|c: char| c.is_ascii_digit()))
            .then(|| name.trim_end_matches(['.', ' ', '*']).to_owned())
    }
}
