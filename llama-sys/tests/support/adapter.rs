//! Adapters of the demo model, written as GGUF files.

use std::io::Write;

/// A file that is gone with this handle.
pub(crate) type File = tempfile::NamedTempFile;

/// Numbers between minus and plus `most`, the same for the same seed.
fn random(seed: u64, count: usize, most: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * most).collect()
}

/// A LoRA adapter to be written, of 32-bit floats.
pub(crate) struct Lora {
    texts: Vec<(String, String)>,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Lora {
    /// One for the queries and keys of each of the demo model's blocks.
    pub(crate) fn of_attention(seed: u64, rank: usize) -> Self {
        let texts = [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")];
        let texts = texts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut lora = Self { texts: texts.to_vec(), tensors: Vec::new() };
        for block in 0..6 {
            for (part, shape) in [("attn_q", [256, 256]), ("attn_v", [256, 128])] {
                lora = lora.pair(&format!("blk.{block}.{part}.weight"), shape, rank, seed + block);
            }
        }
        lora
    }

    /// Changes a value.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.texts.retain(|(known, _)| known != key);
        self.texts.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Leaves a tensor out.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|(known, _, _)| known != name);
        self
    }

    /// Adds a tensor.
    pub(crate) fn tensor(mut self, name: &str, shape: &[usize], seed: u64) -> Self {
        let numbers = random(seed, shape.iter().product(), 0.3);
        self.tensors.push((name.to_owned(), shape.to_vec(), numbers));
        self
    }

    /// Adds the two factors of a change to a weight of this shape.
    pub(crate) fn pair(self, name: &str, [wide, high]: [usize; 2], rank: usize, seed: u64) -> Self {
        let lora = self.tensor(&format!("{name}.lora_a"), &[wide, rank], seed);
        lora.tensor(&format!("{name}.lora_b"), &[rank, high], seed + 1000)
    }

    pub(crate) fn write(&self) -> File {
        let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        file.write_all(&self.bytes()).unwrap();
        file
    }

    /// The file without so many bytes at its end.
    pub(crate) fn truncated(&self, bytes: usize) -> File {
        let file = self.write();
        let length = file.as_file().metadata().unwrap().len();
        file.as_file().set_len(length - bytes as u64).unwrap();
        file
    }

    fn bytes(&self) -> Vec<u8> {
        const ALIGNMENT: usize = 32;
        const STRING: u32 = 8;
        const F32: u32 = 0;
        fn text(out: &mut Vec<u8>, text: &str) {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.texts.len() as u64).to_le_bytes());
        for (key, value) in &self.texts {
            text(&mut out, key);
            out.extend(STRING.to_le_bytes());
            text(&mut out, value);
        }
        let mut data = Vec::new();
        for (name, shape, numbers) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for &n in shape {
                out.extend((n as u64).to_le_bytes());
            }
            out.extend(F32.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(data);
        out
    }
}
