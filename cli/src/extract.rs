//! The verb `extract`: a file that holds a model and its projector flows in; the model alone flows out, as a file that
//! llama.cpp takes.

use std::error::Error;

use autoplace::gguf::Header;
use autoplace::load;
use autoplace::machine::Bytes;
use autoplace::profile::is_of_projector;

use crate::args::ExtractArgs;

/// Writes the text model, if llama.cpp takes it so. Nothing is written before that is known.
pub(crate) fn run(args: &ExtractArgs) -> Result<String, Box<dyn Error>> {
    let header = Header::open(&args.model)?;
    let others = header.tensors().filter(|tensor| is_of_projector(tensor.name())).count();
    if others == 0 {
        return Err(format!("{}: no tensor of a projector is in it", args.model.display()).into());
    }
    let part = header.part(|name| !is_of_projector(name))?;
    load::check(&part.header()?).map_err(|error| {
        format!("{}: llama.cpp would not take its text model either: {error}", args.model.display())
    })?;
    let bytes = part.write(&args.to)?;
    Ok(format!("{}: the model without {others} tensors of a projector, {}", args.to.display(), Bytes(bytes)))
}
