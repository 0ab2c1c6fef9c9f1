//! Completes the manifest of a folder with its files. This is the last step of making a runtime (`cargo xtask
//! runtime`).

use std::path::PathBuf;

use autoplace_runtime::{MANIFEST, Manifest, Set};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("which folder?")?);
    let manifest: Manifest = serde_json::from_str(&std::fs::read_to_string(folder.join(MANIFEST))?)?;
    manifest.write(&folder)?;
    let set = Set::read(&folder)?;
    set.check()?;
    for (name, entry) in &set.manifest.files {
        println!("{:>12}  {name}", entry.bytes);
    }
    println!("{:>12}  {}", set.bytes(), set.manifest.name);
    Ok(())
}
