//! The source of the llama.cpp that was built. It is found in the same way as in the build script.

// The build script of a published crate cannot depend on this crate. `#[path]` shares a file of that build script.
#[path = "../../llama-sys/build/source.rs"]
mod source;

/// Reads a file of the source.
pub fn read(file: &str) -> String {
    let file = source::find().join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
