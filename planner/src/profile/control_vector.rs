//! A control vector: a direction per layer, added to what leaves it. A file flows in, numbers flow out.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::gguf::{Header, TensorType};

use super::{AdapterError, ModelProfile};

/// The directions of a control vector's file (common/common.cpp, `common_control_vector_load_one`).
#[derive(Debug, Clone)]
pub struct ControlVector {
    header: Header,
    width: u64,
    /// Which layer each tensor is for, and where its data begins.
    directions: Vec<(u32, u64)>,
}

impl ControlVector {
    /// Reads the header of a control vector's file and checks it against the model: tensors `direction.1`,
    /// `direction.2`, ..., each of `n_embd` 32-bit floats, for layers that the model has.
    ///
    /// # Errors
    ///
    /// [`AdapterError::Tensor`] for any other tensor, [`AdapterError::Empty`] where there is none.
    pub fn from_header(header: &Header, model: &ModelProfile) -> Result<Self, AdapterError> {
        let file = header.path().display().to_string();
        let width = u64::from(model.hparams.n_embd);
        let layers = model.hparams.n_layer_trunk();
        let mut directions = Vec::new();
        for tensor in header.tensors() {
            let wrong = |problem| Err(AdapterError::tensor(&file, tensor.name(), problem));
            let layer = tensor.name().strip_prefix("direction.");
            let layer = layer.and_then(|layer| layer.parse::<u32>().ok());
            let Some(layer) = layer.filter(|layer| *layer > 0) else {
                return wrong("is no direction of a layer from 1 on".to_owned());
            };
            if layer >= layers {
                let (model, last) = (&model.name, layers.saturating_sub(1));
                let problem = format!("is for layer {layer}, and the last of {model} is {last}");
                return wrong(problem);
            }
            if tensor.ty() != TensorType::F32 {
                return wrong(format!("is {}, and F32 is needed", tensor.ty()));
            }
            if tensor.shape() != [width, 1, 1, 1] {
                let [found, rows, ..] = tensor.shape();
                return wrong(format!("is {found} x {rows}, and {width} x 1 is needed"));
            }
            directions.push((layer, tensor.offset()));
        }
        if directions.is_empty() {
            return Err(AdapterError::Empty { file });
        }
        Ok(Self { header: header.clone(), width, directions })
    }

    /// Adds the directions times `scale` to `sum`, which has `n_embd` numbers for each layer from layer 1 on and
    /// grows as it must.
    ///
    /// # Errors
    ///
    /// [`AdapterError::Unreadable`].
    pub fn add_to(&self, sum: &mut Vec<f32>, scale: f32) -> Result<(), AdapterError> {
        let path = self.header.path();
        let unreadable = |error: std::io::Error| AdapterError::Unreadable {
            file: path.display().to_string(),
            reason: error.to_string(),
        };
        let mut file = File::open(path).map_err(unreadable)?;
        // A width of 32 bits, and a header whose tensors lie within the file.
        let width = usize::try_from(self.width).unwrap_or(usize::MAX);
        let mut bytes = vec![0_u8; width.saturating_mul(4)];
        for &(layer, offset) in &self.directions {
            file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
            file.read_exact(&mut bytes).map_err(unreadable)?;
            let begin = (layer as usize - 1).saturating_mul(width);
            let end = begin.saturating_add(width);
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
