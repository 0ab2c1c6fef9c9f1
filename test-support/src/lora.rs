//! Adapters for any model, as GGUF files.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace_gguf::{Builder, Header, TensorType};

/// A LoRA adapter to be written to a file.
pub struct Adapter {
    builder: Builder,
}

impl Adapter {
    /// An adapter without tensors, for this architecture.
    pub fn new(architecture: &str) -> Self {
        let builder = Builder::new(architecture).str("general.type", "adapter").str("adapter.type", "lora");
        Self { builder }
    }

    pub fn alpha(self, alpha: f32) -> Self {
        self.with(|builder| builder.f32("adapter.lora.alpha", alpha))
    }

    pub fn with(self, change: impl FnOnce(Builder) -> Builder) -> Self {
        Self { builder: change(self.builder) }
    }

    pub fn tensor(self, name: &str, ty: TensorType, shape: &[u64]) -> Self {
        self.with(|builder| builder.tensor(name, ty, shape))
    }

    /// Adds the factors of a change to a weight of this shape.
    pub fn pair(self, weight: &str, shape: [u64; 4], rank: u64, ty: TensorType) -> Self {
        let [wide, high, experts, _] = shape;
        let n_dims = if experts == 1 { 2 } else { 3 };
        // Quantised rows must consist of whole blocks. The rows of the second factor are as long as the rank.
        let of_b = if rank.is_multiple_of(ty.block_size()) { ty } else { TensorType::F16 };
        let with_a = self.tensor(&format!("{weight}.lora_a"), ty, &[wide, rank, experts][..n_dims]);
        with_a.tensor(&format!("{weight}.lora_b"), of_b, &[rank, high, experts][..n_dims])
    }

    /// Adds factors for every weight of the model whose name `takes` accepts.
    pub fn of_weights(self, model: &Header, rank: u64, ty: TensorType, mut takes: impl FnMut(&str) -> bool) -> Self {
        let chosen = model.tensors().filter(|tensor| takes(tensor.name()));
        chosen.fold(self, |adapter, tensor| adapter.pair(tensor.name(), tensor.shape(), rank, ty))
    }

    /// The adapter's header, without a file.
    pub fn header(&self) -> Header {
        self.builder.header().unwrap()
    }

    /// Writes the file with a hole for its data.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(format!("{name}.gguf"));
        self.builder.write_sparse(&path).unwrap();
        path
    }

    /// Writes the file with random 32-bit floats between `-most` and `most`.
    pub fn write_random(&self, folder: &Path, name: &str, seed: u64, most: f32) -> PathBuf {
        write_random(&self.builder, folder, name, seed, most)
    }
}

/// Writes a file with random 32-bit floats between `-most` and `most`.
pub fn write_random(builder: &Builder, folder: &Path, name: &str, seed: u64, most: f32) -> PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    builder.write_sparse(&path).unwrap();
    let header = Header::open(&path).unwrap();
    let mut next = numbers(seed, most);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for tensor in header.tensors() {
        assert_eq!(tensor.ty(), TensorType::F32);
        let bytes: Vec<u8> = (0..tensor.elements()).flat_map(|_| next().to_le_bytes()).collect();
        file.seek(SeekFrom::Start(tensor.offset())).unwrap();
        file.write_all(&bytes).unwrap();
    }
    path
}

/// Random numbers between `-most` and `most`, the same for the same seed.
pub fn numbers(seed: u64, most: f32) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D);
        most * ((bits >> 40) as f32 / (1_u32 << 23) as f32 - 1.0)
    }
}

/// The values of a file's tensor of 32-bit floats.
pub fn values(path: &Path, name: &str) -> Vec<f32> {
    let header = Header::open(path).unwrap();
    let tensor = header.tensor(name).unwrap();
    assert_eq!(tensor.ty(), TensorType::F32);
    let begin = usize::try_from(tensor.offset()).unwrap();
    let end = begin + usize::try_from(tensor.bytes()).unwrap();
    let bytes = std::fs::read(path).unwrap();
    bytes[begin..end].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
