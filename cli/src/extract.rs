//! The verb `extract`. In: a file with a model and its projector. Out: a file with only the model, which llama.cpp
//! accepts.

use std::error::Error;
use std::path::PathBuf;

use autoplace::gguf::Header;
use autoplace::load;
use autoplace::machine::Bytes;
use autoplace::profile::is_of_projector;

/// The arguments of `extract`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExtractArgs {
    /// GGUF file, or a blob of Ollama
    pub(crate) model: PathBuf,
    /// The file to write, which must not exist
    pub(crate) to: PathBuf,
}

/// Writes the model without its projector. Before that, it checks that llama.cpp accepts the result.
pub(crate) fn run(args: &ExtractArgs) -> Result<String, Box<dyn Error>> {
    let header = Header::open(&args.model)?;
    let others = header.tensors().filter(|tensor| is_of_projector(tensor.name())).count();
    if others == 0 {
        return Err(format!("{}: the file contains no tensors of a projector", args.model.display()).into());
    }
    let part = header.part(|name| !is_of_projector(name))?;
    load::check(&part.header()?).map_err(|error| {
        format!("{}: llama.cpp would not load the model without its projector: {error}", args.model.display())
    })?;
    let bytes = part.write(&args.to)?;
    Ok(format!("{}: the model without its projector, {}; tensors left out: {others}", args.to.display(), Bytes(bytes)))
}
