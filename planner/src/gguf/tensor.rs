//! The tensors of one file: reading what the header says of them, checking where their data lies.

use super::cursor::{Cursor, Fault};
use super::error::Error;
use super::metadata::{Span, read_name};
use super::source::Source;
use super::tensor_type::TensorType;

/// The longest tensor name in bytes: one less than `GGML_MAX_NAME` (ggml/include/ggml.h), which counts the closing NUL.
pub(super) const MAX_NAME: u64 = 63;

/// The most dimensions (`GGML_MAX_DIMS`, ggml/include/ggml.h).
const MAX_DIMS: u32 = 4;

/// The least bytes that a tensor takes in the header: length of its name, number of dimensions, type, offset.
pub(super) const MIN_INFO: u64 = 8 + 4 + 4 + 8;

/// What a file says of one tensor.
#[derive(Clone, Copy)]
pub(super) struct TensorInfo {
    pub(super) name: Span,
    pub(super) ty: TensorType,
    pub(super) n_dims: u8,
    pub(super) shard: u16,
    pub(super) shape: [u64; 4],
    /// From the beginning of the file (while it is read: of the data section), in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Where in the file this is said.
    pub(super) at: u64,
}

/// Reads the `count` tensors of a file, where the cursor stands; their names are appended to `names`.
pub(super) fn read_tensors(
    cursor: &mut Cursor<'_>,
    count: u64,
    names: &mut String,
) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::new();
    let mut scratch = Vec::new();
    for index in 0..count {
        let at = cursor.at();
        let name = read_name(cursor, "tensor", index, MAX_NAME, &mut scratch)?;
        let reader = InfoReader {
            source: cursor.source(),
            name,
        };
        let mut info = reader.read(cursor)?;
        info.at = at;
        info.name = Span::push(names, name);
        tensors.push(info);
    }
    Ok(tensors)
}

/// Reads the rest of a tensor's line, after its name.
struct InfoReader<'a> {
    source: &'a Source,
    name: &'a str,
}

impl InfoReader<'_> {
    fn read(&self, cursor: &mut Cursor<'_>) -> Result<TensorInfo, Error> {
        let fault = |what: &'static str| {
            move |fault: Fault| {
                fault.about(
                    self.source,
                    format_args!("the {what} of tensor '{}'", self.name),
                )
            }
        };
        let at = cursor.at();
        let n_dims = cursor.u32().map_err(fault("number of dimensions"))?;
        if n_dims > MAX_DIMS {
            return Err(Error::TensorDims {
                path: self.source.path_buf(),
                at,
                tensor: self.name.to_owned(),
                n_dims,
            });
        }
        let shape_at = cursor.at();
        let mut shape = [1; 4];
        for (dim, elements) in shape.iter_mut().enumerate().take(n_dims as usize) {
            let at = cursor.at();
            *elements = cursor.u64().map_err(fault("shape"))?;
            let signed = elements.cast_signed();
            if signed <= 0 {
                return Err(Error::TensorShape {
                    path: self.source.path_buf(),
                    at,
                    tensor: self.name.to_owned(),
                    dim: dim as u32,
                    elements: signed,
                });
            }
        }
        let type_at = cursor.at();
        let id = cursor.u32().map_err(fault("type"))?;
        let ty = TensorType::from_id(id).ok_or_else(|| Error::TensorType {
            path: self.source.path_buf(),
            at: type_at,
            tensor: self.name.to_owned(),
            id,
            removed: TensorType::removed(id),
        })?;
        if !shape[0].is_multiple_of(ty.block_size()) {
            return Err(Error::TensorRow {
                path: self.source.path_buf(),
                at: shape_at,
                tensor: self.name.to_owned(),
                elements: shape[0],
                ty,
                block_size: ty.block_size(),
            });
        }
        let bytes = data_bytes(ty, shape).ok_or_else(|| self.too_large(shape_at, shape))?;
        let offset = cursor.u64().map_err(fault("offset"))?;
        Ok(TensorInfo {
            name: Span::push(&mut String::new(), ""),
            ty,
            n_dims: n_dims as u8,
            shard: 0,
            shape,
            offset,
            bytes,
            at,
        })
    }

    fn too_large(&self, at: u64, shape: [u64; 4]) -> Error {
        Error::TensorTooLarge {
            path: self.source.path_buf(),
            at,
            tensor: self.name.to_owned(),
            shape,
        }
    }
}

/// The bytes of a tensor's data (`ggml_nbytes` of a contiguous one), if its elements and its bytes both fit in 63 bits.
///
/// The elements are held to the bound whose violation ends the process in `ggml_new_tensor_impl` (ggml/src/ggml.c).
/// It is tighter by a hair than the check of llama.cpp's own reader, so that a file with such a shape makes
/// llama.cpp abort.
pub(super) fn data_bytes(ty: TensorType, shape: [u64; 4]) -> Option<u64> {
    const MAX: u64 = i64::MAX as u64;
    let mut elements = shape[0];
    let mut bytes = ty.checked_row_bytes(shape[0])?;
    for &n in &shape[1..] {
        if n > 1 && MAX / n <= elements {
            return None;
        }
        elements *= n;
        bytes = bytes.checked_mul(n)?;
    }
    (elements <= MAX && bytes <= MAX).then_some(bytes)
}

/// Checks that each tensor's data begins where the one before it ends and lies inside the file, and makes the
/// offsets absolute.
///
/// llama.cpp asks for exactly this order (`ggml/src/gguf.cpp`, "compute the total size of the data section") and,
/// when the model is loaded, for the inside (`src/llama-model-loader.h`, `llama_tensor_weight`). The last tensor's
/// padding may be missing.
pub(super) fn place_tensors(
    source: &Source,
    alignment: u64,
    data_offset: u64,
    names: &str,
    tensors: &mut [TensorInfo],
) -> Result<(), Error> {
    let mut expected = 0;
    for info in tensors {
        let tensor = || info.name.of(names).to_owned();
        if info.offset != expected {
            return Err(Error::TensorOffset {
                path: source.path_buf(),
                at: info.at,
                tensor: tensor(),
                offset: info.offset,
                expected,
                alignment,
            });
        }
        // A sum that reaches 2^64 is outside of any file.
        let begin = data_offset.saturating_add(info.offset);
        let end = begin.saturating_add(info.bytes);
        if end > source.len() {
            return Err(Error::TensorOutside {
                path: source.path_buf(),
                at: info.at,
                tensor: tensor(),
                end,
                file_bytes: source.len(),
            });
        }
        expected = expected.saturating_add(info.bytes.saturating_add(alignment - 1));
        expected -= expected % alignment;
        info.offset = begin;
    }
    Ok(())
}

/// A tensor of a model file: what it is called, how large it is, and where its data lies. Not the data itself.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(super) names: &'a str,
    pub(super) info: &'a TensorInfo,
}

impl<'a> Tensor<'a> {
    /// The name, such as `blk.0.attn_q.weight`; at most 63 bytes.
    pub fn name(&self) -> &'a str {
        self.info.name.of(self.names)
    }

    /// The type of the elements.
    pub fn ty(&self) -> TensorType {
        self.info.ty
    }

    /// The number of elements in each dimension (`ne`), the innermost first; 1 in those beyond
    /// [`n_dims`](Self::n_dims).
    pub fn shape(&self) -> [u64; 4] {
        self.info.shape
    }

    /// The number of dimensions that the file states, 0 to 4.
    pub fn n_dims(&self) -> usize {
        self.info.n_dims.into()
    }

    /// The number of elements, at most 2^63 - 1.
    #[doc(alias = "ggml_nelements")]
    pub fn elements(&self) -> u64 {
        self.info.shape.iter().product()
    }

    /// The bytes of the data, without padding.
    #[doc(alias = "ggml_nbytes")]
    pub fn bytes(&self) -> u64 {
        self.info.bytes
    }

    /// Where the data begins, in bytes from the beginning of its shard's file.
    pub fn offset(&self) -> u64 {
        self.info.offset
    }

    /// Which of [`Header::shards`](super::Header::shards) holds the data.
    pub fn shard(&self) -> usize {
        self.info.shard.into()
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = &self.shape()[..self.n_dims()];
        write!(
            f,
            "{} {} {shape:?} at {}+{}",
            self.name(),
            self.ty(),
            self.offset(),
            self.bytes()
        )
    }
}
