//! Writes a part of a model as a separate file. A header and a choice of tensors flow in; a file with the data of these
//! tensors flows out.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::builder::Builder;
use crate::error::Error;
use crate::header::Header;
use crate::tensor::Tensor;

/// Some tensors of a model, with all of its metadata.
#[derive(Debug)]
pub struct Part<'a> {
    header: &'a Header,
    tensors: Vec<&'a Tensor>,
    builder: Builder,
}

impl Header {
    /// The part of this model with all metadata and with the tensors that `wanted` accepts, in the model's order. The
    /// part is one file, even if the model has several shards.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`] if an array of the metadata cannot be read again.
    pub fn part(&self, wanted: impl Fn(&str) -> bool) -> Result<Part<'_>, Error> {
        let tensors: Vec<&Tensor> = self.tensors().filter(|tensor| wanted(tensor.name())).collect();
        let add = |builder: Builder, tensor: &&Tensor| {
            builder.tensor(tensor.name(), tensor.ty(), &tensor.shape()[..tensor.n_dims()])
        };
        let builder = tensors.iter().fold(self.vocabulary(u64::MAX)?, add);
        Ok(Part { header: self, tensors, builder })
    }
}

impl Part<'_> {
    /// The part's header, as [`Header::open`] would read it from the file.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::header`].
    pub fn header(&self) -> Result<Header, Error> {
        self.builder.header()
    }

    /// Writes the part with the tensors' data to a new file, and returns the file's length in bytes. A file that cannot
    /// be completed is removed.
    ///
    /// # Errors
    ///
    /// [`Error::Write`] if the file exists or cannot be written; [`Error::Open`] and [`Error::Read`] for the model's
    /// own files; [`Error::Changed`] if the model's files have changed since the header was read.
    pub fn write(&self, path: &Path) -> Result<u64, Error> {
        let unwritten = |source| Error::Write { path: path.to_owned(), source };
        let mut file = File::create_new(path).map_err(unwritten)?;
        let written = self.write_into(&mut file, path).and_then(|bytes| {
            self.header.check_unchanged()?;
            Ok(bytes)
        });
        if written.is_err() {
            let _ = std::fs::remove_file(path);
        }
        written
    }

    fn write_into(&self, file: &mut File, path: &Path) -> Result<u64, Error> {
        let unwritten = |source| Error::Write { path: path.to_owned(), source };
        let (bytes, file_bytes) = self.builder.encoded()?;
        let shape = self.builder.header()?;
        file.write_all(&bytes).and_then(|()| file.set_len(file_bytes)).map_err(unwritten)?;
        let open = |path: &Path| File::open(path).map_err(|source| Error::Open { path: path.to_owned(), source });
        let shards = self.header.shards().iter().map(|shard| open(shard.path())).collect::<Result<Vec<_>, _>>()?;
        for (tensor, place) in self.tensors.iter().zip(shape.tensors()) {
            let mut source = &shards[tensor.shard()];
            let read = source.seek(SeekFrom::Start(tensor.offset())).and_then(|_| {
                file.seek(SeekFrom::Start(place.offset()))?;
                match io::copy(&mut source.take(tensor.bytes()), file)? {
                    copied if copied == tensor.bytes() => Ok(()),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            });
            read.map_err(|source| Error::Read {
                path: self.header.shards()[tensor.shard()].path().to_owned(),
                at: tensor.offset(),
                needed: tensor.bytes(),
                source,
            })?;
        }
        Ok(file_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;

    #[test]
    fn a_part_has_the_metadata_and_tensor_data_or_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let [model, part] = ["model.gguf", "part.gguf"].map(|name| folder.path().join(name));
        let builder = Builder::new("llama")
            .u32("general.alignment", 64)
            .array_str("tokenizer.ggml.tokens", ["a", "b"])
            .tensor("one", TensorType::F32, &[4])
            .tensor("v.two", TensorType::F32, &[40])
            .tensor("three", TensorType::F32, &[8]);
        let mut bytes = builder.to_bytes().unwrap();
        let header = builder.header().unwrap();
        for (value, tensor) in (1..).zip(header.tensors()) {
            let begin = tensor.offset() as usize;
            bytes[begin..begin + tensor.bytes() as usize].fill(value);
        }
        std::fs::write(&model, bytes).unwrap();
        let header = Header::open(&model).unwrap();
        let wanted = header.part(|name| !name.starts_with("v.")).unwrap();
        let file_bytes = wanted.write(&part).unwrap();
        let written = std::fs::read(&part).unwrap();
        assert_eq!(written.len() as u64, file_bytes);
        let read = Header::open(&part).unwrap();
        assert_eq!(read.metadata().len(), header.metadata().len());
        let data = |tensor: &Tensor| &written[tensor.offset() as usize..(tensor.offset() + tensor.bytes()) as usize];
        let tensors: Vec<_> = read.tensors().map(|tensor| (tensor.name(), data(tensor))).collect();
        assert_eq!(tensors, [("one", &[1; 16][..]), ("three", &[3; 32])]);
        // An existing file stays, and an incomplete one is removed.
        assert!(matches!(wanted.write(&part), Err(Error::Write { .. })));
        assert_eq!(std::fs::read(&part).unwrap(), written);
        std::fs::write(&model, b"short").unwrap();
        let other = folder.path().join("other.gguf");
        assert!(matches!(wanted.write(&other), Err(Error::Read { .. } | Error::Changed { .. })));
        assert!(!other.exists());
    }
}
