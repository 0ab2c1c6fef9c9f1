//! Checks the system requirements of the bundle's programs and libraries. In: ELF files. Out: an error that names the
//! file and a requirement that some systems do not meet.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, StringTable};

use crate::tree;

/// Libraries that every system with glibc has, and gcc's unwinder, which every C++ program needs.
const SYSTEM: [&str; 7] =
    ["ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", UNWINDER, "libm.so.6", "libpthread.so.0", "librt.so.1"];

const UNWINDER: &str = "libgcc_s.so.1";

/// The requirements of one file.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Needs {
    /// The name under which other files load this file.
    pub(crate) name: Option<String>,
    pub(crate) libraries: BTreeSet<String>,
    /// Symbol versions: `GLIBC_2.17`.
    pub(crate) versions: BTreeSet<String>,
    /// The folders in which the loader looks first, separated by colons. An empty entry is the current folder.
    pub(crate) run_path: Option<String>,
}

/// The only run path that is the same on every machine: the folder of the file itself.
const OWN_FOLDER: &str = "$ORIGIN";

/// Reads the entries of the file that the loader reads.
pub(crate) fn needs(path: &Path) -> Result<Needs> {
    let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    read(&data).with_context(|| format!("{} is not a 64-bit ELF file", path.display()))
}

fn read(data: &[u8]) -> object::Result<Needs> {
    let file = ElfFile64::<Endianness>::parse(data)?;
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, data)?;
    let mut needs = Needs::default();
    if let Some((entries, strings)) = sections.dynamic(endian, data)? {
        let strings: StringTable<'_> = sections.strings(endian, data, strings)?;
        for entry in entries {
            let tag = entry.d_tag(endian);
            let text = || Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
            if tag == DT_NEEDED {
                needs.libraries.insert(text()?);
            } else if tag == DT_SONAME {
                needs.name = Some(text()?);
            } else if tag == DT_RUNPATH || tag == DT_RPATH {
                needs.run_path = Some(text()?);
            }
        }
    }
    if let Some((mut files, strings)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, strings)?;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                needs.versions.insert(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(needs)
}

/// Copies a library, and keeps only its own folder of its run path. cmake adds folders of the machine of the build, and
/// an empty entry. On another machine, anyone may have put libraries into such a folder.
pub(crate) fn copy_with_own_folder(from: &Path, to: &Path) -> Result<()> {
    super::copy(from, to)?;
    let Some(run_path) = needs(from)?.run_path.filter(|path| path != OWN_FOLDER) else { return Ok(()) };
    let mut data = fs::read(to).with_context(|| format!("cannot read {}", to.display()))?;
    let text = [run_path.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        data.windows(text.len()).enumerate().filter(|(_, at)| *at == text).map(|at| at.0).collect();
    ensure!(
        run_path.starts_with(&format!("{OWN_FOLDER}:")) && places.len() == 1,
        "{} has the run path `{run_path}`, which cannot be shortened to `{OWN_FOLDER}`",
        from.display()
    );
    data[places[0] + OWN_FOLDER.len()..places[0] + run_path.len()].fill(0);
    fs::write(to, data).with_context(|| format!("cannot write {}", to.display()))
}

/// Checks every file of a folder. A file may need a glibc of this version, these other libraries, and files of the
/// folder. Returns the libraries that the files need.
pub(crate) fn check(verb: &str, folder: &Path, glibc: (u32, u32), others: &[&str]) -> Result<BTreeSet<String>> {
    let mut all = Vec::new();
    for file in tree::files(folder)? {
        let needs = needs(&folder.join(&file))?;
        all.push((file.display().to_string(), needs));
    }
    let beside = all.iter().filter_map(|(_, needs)| needs.name.as_deref());
    let beside: BTreeSet<&str> = beside.chain(others.iter().copied()).collect();
    for (file, needs) in &all {
        let missing = missing(needs, &beside, glibc);
        ensure!(
            missing.is_empty(),
            "{file} needs {}, which is not beside it, nor on every system with glibc {}.{}",
            missing.join(" and "),
            glibc.0,
            glibc.1
        );
        let run_path = needs.run_path.as_deref().unwrap_or(OWN_FOLDER);
        ensure!(run_path == OWN_FOLDER, "{file} looks for libraries in `{run_path}`, not only in its own folder");
        // A statically linked unwinder could not unwind the CUDA backend.
        ensure!(needs.libraries.contains(UNWINDER), "{file} does not use the system's {UNWINDER}");
    }
    println!("{verb}: {} files need nothing newer than glibc {}.{}", all.len(), glibc.0, glibc.1);
    Ok(all.into_iter().flat_map(|(_, needs)| needs.libraries).collect())
}

/// The requirements of a file that are met neither by the files in its folder nor by the system.
fn missing<'a>(needs: &'a Needs, beside: &BTreeSet<&str>, glibc: (u32, u32)) -> Vec<&'a str> {
    let is_there = |library: &str| SYSTEM.contains(&library) || beside.contains(library);
    let libraries = needs.libraries.iter().filter(|library| !is_there(library));
    // The symbol versions of NVIDIA's libraries are named after the libraries.
    let versions = needs.versions.iter().filter(|version| !is_old_enough(version, glibc) && !is_there(version));
    libraries.chain(versions).map(String::as_str).collect()
}

/// Accepts symbol versions of glibc (`GLIBC_2.17`) up to the given version, and all symbol versions of gcc.
/// `GLIBC_PRIVATE` is rejected, because it belongs to a single build of glibc.
fn is_old_enough(version: &str, glibc: (u32, u32)) -> bool {
    let Some(version) = version.strip_prefix("GLIBC_") else {
        // Versions of libgcc. The newest of them that we link against on x86-64 is from gcc 4.2
        // (gpu-check/zig/gcc_s.map).
        return version.starts_with("GCC_");
    };
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) <= glibc,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(libraries: &[&str], versions: &[&str]) -> Needs {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Needs { libraries: set(libraries), versions: set(versions), ..Needs::default() }
    }

    #[test]
    fn a_newer_symbol_of_glibc_is_missing() {
        let needs = asking(&["libc.so.6"], &["GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_2.29", "GLIBC_PRIVATE"]);
        let beside = BTreeSet::new();
        assert_eq!(missing(&needs, &beside, (2, 28)), ["GLIBC_2.29", "GLIBC_PRIVATE"]);
    }

    #[test]
    fn a_library_is_beside_the_file_or_the_systems_or_missing() {
        let needs = asking(&["libggml-base.so.0", "libm.so.6", "libstdc++.so.6"], &["GLIBCXX_3.4", "libcudart.so.13"]);
        let beside = BTreeSet::from(["libcudart.so.13", "libggml-base.so.0"]);
        assert_eq!(missing(&needs, &beside, (2, 28)), ["libstdc++.so.6", "GLIBCXX_3.4"]);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn the_requirements_of_a_program_of_this_machine_are_read() {
        let needs = needs(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(needs.name, None);
        assert!(needs.libraries.contains("libc.so.6"), "{needs:?}");
        assert!(needs.versions.contains("GLIBC_2.2.5"), "{needs:?}");
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_copied_library_looks_for_others_only_in_its_own_folder() {
        let folder =
            tree::afresh(std::env::temp_dir().join(format!("autoplace-xtask-run-path-{}", std::process::id())));
        let folder = folder.unwrap();
        fs::write(folder.join("empty.c"), "").unwrap();
        let (built, copied) = (folder.join("built.so"), folder.join("copied.so"));
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-nostdlib", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN:/of/the/build:"]);
        crate::workspace::run(compiler.arg(folder.join("empty.c")).arg("-o").arg(&built)).unwrap();
        assert_eq!(needs(&built).unwrap().run_path.as_deref(), Some("$ORIGIN:/of/the/build:"));
        copy_with_own_folder(&built, &copied).unwrap();
        assert_eq!(needs(&copied).unwrap().run_path.as_deref(), Some("$ORIGIN"));
        // A file that needs no change is only copied.
        copy_with_own_folder(&copied, &built).unwrap();
        assert_eq!(fs::read(&built).unwrap(), fs::read(&copied).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_program_is_named() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = format!("{:#}", needs(&path).unwrap_err());
        assert!(error.contains("Cargo.toml is not a 64-bit ELF file"), "{error}");
    }
}
