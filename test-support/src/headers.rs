//! Headers for the GGUF tests and benchmark: a synthetic 70B header, a small one with every kind of value, and one
//! written byte by byte.

use autoplace_gguf::{Builder, Error, Header, TensorType};

use crate::shapes::{LLAMA_70B, Shape};

/// Tokens, merges and tensors of Llama 3.3 70B.
pub const TOKENS: usize = 128_256;
pub const MERGES: usize = 280_147;
pub const TENSORS: usize = 723;

/// A header like the one of Llama 3.3 70B in Q4_K_M. It has the same shapes and counts, and invented tokens of about
/// the same length.
pub fn llama_70b() -> Builder {
    let token = |i: usize| format!("Ġt{i:05x}");
    let merge = |i: usize| format!("Ġ{:03x} {i:04x}", i % 4096);
    let model = Shape { rope_freqs: false, ..LLAMA_70B };
    model
        .builder()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "llama-bpe")
        .array_str("tokenizer.ggml.tokens", (0..TOKENS).map(token))
        .array_i32("tokenizer.ggml.token_type", &vec![1; TOKENS])
        .array_str("tokenizer.ggml.merges", (0..MERGES).map(merge))
        .u32("tokenizer.ggml.bos_token_id", 128_000)
        .str("tokenizer.chat_template", "{{ messages }}".repeat(300))
}

/// A small model with every value type, arrays of several types, and tensors whose sizes need padding.
pub fn small() -> Builder {
    Builder::new("llama")
        .u32("llama.block_count", 2)
        .u8("t.u8", 200)
        .i8("t.i8", -100)
        .u16("t.u16", 60_000)
        .i16("t.i16", -30_000)
        .i32("t.i32", -2_000_000_000)
        .f32("t.f32", 1.5)
        .bool("t.bool", true)
        .u64("t.u64", 1 << 60)
        .i64("t.i64", -(1 << 60))
        .f64("t.f64", -0.25)
        .str("t.str", "déjà vu")
        .str("t.bytes", [0xff, 0xfe, b'x'])
        .array_u32("llama.attention.head_count_kv", &[8, 4])
        .array_bool("llama.attention.sliding_window_pattern", &[true, false])
        .array_i32("t.i32s", &[-1, 0, 1])
        .array_f32("t.f32s", &[0.5, -0.5])
        .array_u64("t.u64s", &[])
        .array_str("tokenizer.ggml.tokens", ["<s>", "</s>", "", "Ġthe"])
        .u32("general.alignment", 64)
        .tensor("token_embd.weight", TensorType::Q8_0, &[32, 3])
        .tensor("blk.0.norm.weight", TensorType::F32, &[5])
        .tensor("blk.1.exps.weight", TensorType::Q4_K, &[256, 2, 3])
        .tensor("output.weight", TensorType::F16, &[7, 3])
}

/// A GGUF file written byte by byte, valid or not.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Magic, version 3 and the two counts.
    pub fn head(tensors: u64, keys: u64) -> Raw {
        Raw::default().put(b"GGUF").u32(3).u64(tensors).u64(keys)
    }

    /// Writes a file from words (`head:1,0 tensor:t,8x2,F32,0 data:32`). Each word is a method of this type and its
    /// arguments. Numbers may be powers of two (`2^60`, `2^64-1`), and `_` in a text stands for a space.
    pub fn assembled(words: &str) -> Raw {
        words.split_whitespace().fold(Raw::default(), |raw, word| {
            let (verb, rest) = word.split_once(':').expect(word);
            let given: Vec<&str> = rest.split(',').collect();
            let first = || number(given[0]);
            match verb {
                "head" => Raw::head(first(), number(given[1])),
                "u32" => raw.u32(first() as u32),
                "u64" => raw.u64(first()),
                "zeros" => raw.put(&vec![0; first() as usize]),
                "hex" => raw.put(&hex(rest)),
                "text" => raw.put(rest.replace('_', " ").as_bytes()),
                "str" => raw.string(rest),
                "strhex" => raw.string(hex(rest)),
                "key" => raw.key(given[0], number(given[1]) as u32),
                "tensor" => {
                    let shape: Vec<u64> = given[1].split('x').map(number).collect();
                    raw.tensor(given[0], &shape, number(given[2]) as u32, number(given[3]))
                }
                "data" => raw.data(first() as usize),
                _ => panic!("{word}"),
            }
        })
    }

    pub fn put(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Raw {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Raw {
        self.put(&value.to_le_bytes())
    }

    /// A string with its length.
    pub fn string(self, bytes: impl AsRef<[u8]>) -> Raw {
        let bytes = bytes.as_ref();
        self.u64(bytes.len() as u64).put(bytes)
    }

    /// A key and its value's type.
    pub fn key(self, name: &str, ty: u32) -> Raw {
        self.string(name).u32(ty)
    }

    /// The whole entry of a tensor.
    pub fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Raw {
        let raw = self.string(name).u32(shape.len() as u32);
        let raw = shape.iter().fold(raw, |raw, &n| raw.u64(n));
        raw.u32(ty).u64(offset)
    }

    /// Pads the header to 32 bytes and adds `bytes` zeros of data.
    pub fn data(mut self, bytes: usize) -> Raw {
        let end = self.0.len().next_multiple_of(32) + bytes;
        self.0.resize(end, 0);
        self
    }

    pub fn parse(self) -> Result<Header, Error> {
        Header::parse(self.0)
    }
}

/// Parses a number, a power of two (optionally with `+1` or `-1`), or the name of a type, which stands for its number.
fn number(text: &str) -> u64 {
    if let Some(power) = text.strip_prefix("2^") {
        let bits = power.trim_end_matches("+1").trim_end_matches("-1");
        let power_of_two = 1_u128 << bits.parse::<u32>().unwrap();
        let more = u128::from(power.ends_with("+1"));
        return u64::try_from(power_of_two + more - u128::from(power.ends_with("-1"))).unwrap();
    }
    match text {
        "u8" | "F32" => 0,
        "u32" => 4,
        "str" => 8,
        "array" => 9,
        "Q4_K" => 12,
        _ => text.parse().expect(text),
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let digits = digits.map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Checks that the error's message contains all of `words`.
#[track_caller]
pub fn says(error: &Error, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

/// Calls everything that reads from a header, and ignores errors.
pub fn read_everything(header: &Header) {
    let _ = (header.architecture(), header.file_bytes());
    let _ = header.u32_per_layer("llama.attention.head_count_kv", 2);
    for (key, value) in header.metadata() {
        // The values are compared as text, because NaN is not equal to itself.
        assert_eq!(format!("{:?}", header.get(key)), format!("{:?}", Some(value)));
        let _ = (header.uint(key), header.str(key));
        let Some(array) = value.as_array() else {
            continue;
        };
        let _ = array.to_u32s();
        let raw = array.raw_bytes().expect("a walked array can be read");
        if let Some(size) = array.element_type().size() {
            assert_eq!(raw.len() as u64, array.len() * size, "{key}");
        }
        if let Ok(strings) = array.strings() {
            let read = strings.map(|string| string.expect("a walked string can be read"));
            assert_eq!(read.count() as u64, array.len(), "{key}");
        }
    }
    let shards = header.shards();
    for tensor in header.tensors() {
        assert_eq!(header.tensor(tensor.name()).unwrap().offset(), tensor.offset());
        let end = tensor.offset() + tensor.bytes();
        assert!(end <= shards[tensor.shard()].file_bytes(), "{tensor:?}");
        assert!(tensor.elements() > 0, "{tensor:?}");
    }
}
