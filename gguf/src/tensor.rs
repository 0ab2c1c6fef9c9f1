//! The tensors of one file: reading their descriptions, and checking where their data lies.

use std::sync::Arc;

use crate::error::Error;
use crate::metadata::read_name;
use crate::source::{Cursor, Source};
use crate::tensor_type::TensorType;

/// The longest tensor name in bytes: one less than `GGML_MAX_NAME` (ggml/include/ggml.h), which includes the closing
/// NUL.
const MAX_NAME: u64 = 63;

/// Maximum number of dimensions (`GGML_MAX_DIMS`, ggml/include/ggml.h).
const MAX_DIMS: u32 = 4;

/// Minimum bytes of a tensor's description: length of its name, number of dimensions, type, offset.
pub(crate) const MIN_INFO: u64 = 8 + 4 + 4 + 8;

/// A tensor of a model file: its name, type, shape and position, without the data.
#[derive(Debug)]
pub struct Tensor {
    pub(crate) name: Arc<str>,
    pub(crate) ty: TensorType,
    pub(crate) n_dims: u8,
    pub(crate) shard: u16,
    pub(crate) shape: [u64; 4],
    /// Offset from the beginning of the file in bytes. While the header is being read, the offset counts from the
    /// beginning of the data section.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// File offset of the description.
    pub(crate) at: u64,
}

impl Tensor {
    /// Reads the description of tensor `index` at the cursor.
    pub(crate) fn read(cursor: &mut Cursor<'_>, index: u64) -> Result<Tensor, Error> {
        let source = cursor.source();
        let at = cursor.at();
        let name = read_name(cursor, MAX_NAME, format_args!("the name of tensor {index}"))?;
        let n_dims_at = cursor.at();
        let n_dims = cursor.u32(format_args!("the number of dimensions of tensor '{name}'"))?;
        if n_dims > MAX_DIMS {
            let problem = format_args!("tensor '{name}' has {n_dims} dimensions, but at most 4 are allowed");
            return Err(source.malformed(n_dims_at, problem));
        }
        let shape_at = cursor.at();
        let mut shape = [1; 4];
        for (dim, elements) in shape.iter_mut().enumerate().take(n_dims as usize) {
            let at = cursor.at();
            *elements = cursor.u64(format_args!("the shape of tensor '{name}'"))?;
            let n = elements.cast_signed();
            if n <= 0 {
                let problem = format_args!("dimension {dim} of tensor '{name}' has {n} elements");
                return Err(source.malformed(at, problem));
            }
        }
        let type_at = cursor.at();
        let id = cursor.u32(format_args!("the type of tensor '{name}'"))?;
        let ty = TensorType::from_id(id).ok_or_else(|| {
            let why = TensorType::why_unknown(id);
            let problem = format_args!("tensor '{name}' has the type {id} ({why})");
            source.malformed(type_at, problem)
        })?;
        let (row, block) = (shape[0], ty.block_size());
        if !row.is_multiple_of(block) {
            let problem = format_args!(
                "tensor '{name}' has rows of {row} elements, not a multiple of the {block} in a block of {ty}"
            );
            return Err(source.malformed(shape_at, problem));
        }
        let bytes = data_bytes(ty, &shape).ok_or_else(|| {
            let problem = format_args!("tensor '{name}' with shape {shape:?} is larger than 2^63");
            source.malformed(shape_at, problem)
        })?;
        let offset = cursor.u64(format_args!("the offset of tensor '{name}'"))?;
        Ok(Tensor { name, ty, n_dims: n_dims as u8, shard: 0, shape, offset, bytes, at })
    }

    /// The name, such as `blk.0.attn_q.weight`; at most 63 bytes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The number of elements in each dimension (`ne`), the innermost first; 1 for dimensions beyond
    /// [`n_dims`](Self::n_dims).
    pub fn shape(&self) -> [u64; 4] {
        self.shape
    }

    /// The number of dimensions in the file, 0 to 4.
    pub fn n_dims(&self) -> usize {
        self.n_dims.into()
    }

    /// The number of elements, at most 2^63 - 1.
    #[doc(alias = "ggml_nelements")]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The bytes of the data, without padding.
    #[doc(alias = "ggml_nbytes")]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the data in its shard's file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Index into [`Header::shards`](crate::Header::shards) of the file that holds the data.
    pub fn shard(&self) -> usize {
        self.shard.into()
    }
}

/// The bytes of a tensor's data (`ggml_nbytes` of a contiguous tensor), if its elements and its bytes both fit in 63
/// bits. The limit on elements comes from `ggml_new_tensor_impl` (ggml/src/ggml.c), which aborts the process beyond it.
/// This limit is slightly tighter than the check in llama.cpp's reader.
pub(crate) fn data_bytes(ty: TensorType, shape: &[u64]) -> Option<u64> {
    const MAX: u64 = i64::MAX as u64;
    let (&row, rows) = shape.split_first().unwrap_or((&1, &[]));
    let mut elements = row;
    let mut bytes = ty.row_bytes(row);
    for &n in rows {
        if n > 1 && MAX / n <= elements {
            return None;
        }
        elements *= n;
        bytes = bytes.checked_mul(n)?;
    }
    (elements <= MAX && bytes <= MAX).then_some(bytes)
}

/// Makes the offsets absolute. Checks that each tensor's data begins where the previous tensor's data ends, and that it
/// lies inside the file.
///
/// llama.cpp requires exactly this order (`ggml/src/gguf.cpp`, "compute the total size of the data section"). During a
/// load, it also requires that the data lies inside the file (`src/llama-model-loader.h`, `llama_tensor_weight`). The
/// last tensor's padding may be missing.
pub(crate) fn place(tensors: &mut [Tensor], source: &Source, alignment: u64, data_offset: u64) -> Result<(), Error> {
    let mut expected = 0;
    for tensor in tensors {
        let Tensor { name, offset, .. } = &*tensor;
        if *offset != expected {
            let lies = if !offset.is_multiple_of(alignment) {
                format!("not aligned to {alignment} bytes")
            } else if *offset < expected {
                "overlapping the one before it".to_owned()
            } else {
                "not directly after the one before it".to_owned()
            };
            let problem = format_args!(
                "tensor '{name}' is {lies}: its data begins at offset {offset} of the data section, not at {expected}"
            );
            return Err(source.malformed(tensor.at, problem));
        }
        // A sum that saturates at 2^64 lies outside any file.
        let begin = data_offset.saturating_add(*offset);
        let end = begin.saturating_add(tensor.bytes);
        if end > source.len {
            return Err(Error::TensorOutside {
                path: source.path_buf(),
                at: tensor.at,
                tensor: name.to_string(),
                end,
                file_bytes: source.len,
            });
        }
        expected = expected.saturating_add(tensor.bytes.saturating_add(alignment - 1));
        expected -= expected % alignment;
        tensor.offset = begin;
    }
    Ok(())
}
