//! Control vectors: a direction for each layer, added to the layer's output. The header flows in first, and the numbers
//! of the file are read later.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::gguf::{Header, TensorType};

use super::{AdapterError, ModelProfile};

/// A control vector's file, checked against a model (common/common.cpp, `common_control_vector_load_one`).
#[derive(Debug, Clone)]
pub struct ControlVector {
    header: Header,
    /// How many numbers each direction has: the model's `n_embd`.
    width: usize,
    /// The layer of each direction, and the offset of its numbers in the file.
    directions: Vec<(u32, u64)>,
}

impl ControlVector {
    /// Reads a control vector's header and checks it against the model. Its tensors are `direction.1`, `direction.2`,
    /// ..., each of `n_embd` 32-bit floats, for layers that the model has.
    ///
    /// # Errors
    ///
    /// [`AdapterError::Tensor`] for any other tensor, [`AdapterError::Unfit`] for a file without tensors.
    pub fn from_header(header: &Header, model: &ModelProfile) -> Result<Self, AdapterError> {
        let file = header.path().display().to_string();
        let width = u64::from(model.hparams.n_embd);
        let last = model.hparams.n_layer_trunk().saturating_sub(1);
        let mut directions = Vec::new();
        for tensor in header.tensors() {
            let wrong = |problem: String| Err(AdapterError::tensor(&file, tensor.name(), problem));
            let layer = tensor.name().strip_prefix("direction.").and_then(|layer| layer.parse::<u32>().ok());
            let Some(layer) = layer.filter(|&layer| layer > 0) else {
                return wrong("is not a control vector tensor `direction.N` with N from 1 on".into());
            };
            if layer > last {
                return wrong(format!("is for layer {layer}, but the last layer of {} is {last}", model.name));
            }
            if tensor.ty() != TensorType::F32 {
                return wrong(format!("is {}, but F32 is needed", tensor.ty()));
            }
            if tensor.shape() != [width, 1, 1, 1] {
                let found = tensor.shape().map(|n| n.to_string()).join(" x ");
                return wrong(format!("is {found}, but {width} x 1 x 1 x 1 is needed"));
            }
            directions.push((layer, tensor.offset()));
        }
        if directions.is_empty() {
            let reason = "is not a control vector: it has no tensors".to_owned();
            return Err(AdapterError::Unfit { file, reason });
        }
        Ok(Self { header: header.clone(), width: model.hparams.n_embd as usize, directions })
    }

    /// Reads the directions, multiplies them by `scale` and adds them to `sum`, which has `n_embd` numbers for each
    /// layer, from layer 1 on. If necessary, `sum` is extended to the last layer of this file.
    ///
    /// # Errors
    ///
    /// [`AdapterError::Unreadable`] if the file's data cannot be read.
    pub fn add_to(&self, sum: &mut Vec<f32>, scale: f32) -> Result<(), AdapterError> {
        let path = self.header.path();
        let unreadable = |error: std::io::Error| AdapterError::Unreadable {
            file: path.display().to_string(),
            reason: error.to_string(),
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let mut bytes = vec![0_u8; self.width.saturating_mul(4)];
        for &(layer, offset) in &self.directions {
            file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
            file.read_exact(&mut bytes).map_err(unreadable)?;
            let begin = (layer as usize - 1).saturating_mul(self.width);
            let end = begin.saturating_add(self.width);
            if sum.len() < end {
                sum.resize(end, 0.0);
            }
            for (sum, number) in sum[begin..end].iter_mut().zip(bytes.as_chunks::<4>().0) {
                *sum += f32::from_le_bytes(*number) * scale;
            }
        }
        Ok(())
    }
}
