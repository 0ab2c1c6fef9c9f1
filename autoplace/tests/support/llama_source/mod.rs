//! The source of the llama.cpp that is built, found as the build finds it.

#[path = "../../../../llama-sys/build/source.rs"]
mod source;

/// One of its files.
pub(crate) fn read(file: &str) -> String {
    let file = source::find().join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
