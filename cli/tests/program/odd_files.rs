//! Odd files, which are made from the header of a real file. `plan`, `list` and `run` must refuse exactly those files
//! that llama.cpp refuses.
//!
//! Each file has the header of the demo model, with one or two changes. The tensors are holes in a sparse file. A
//! change is left out if it is known to kill the process. For the test of all files, `AUTOPLACE_ODD_FILES` can name
//! other models, separated by `:`.
//!
//! `AUTOPLACE_ODD_FILES=a.gguf:b.gguf cargo test -p autoplace-cli --test program odd_files -- --ignored --nocapture`
//!
//! With `AUTOPLACE_ODD_FILES_PART=2/4`, that test compares only the second quarter of the files.

use std::collections::BTreeMap;
use std::env;
use std::ops::Range;
use std::path::{Path, PathBuf};

use autoplace::gguf::{Builder, Header, TensorType, Value, ValueType};
use autoplace::llama_sys::{self, Context, ContextParams, LoadMode, ModelParams};
use autoplace::{Isolation, Model, ModelBuilder};
use serde_json::Value as Json;

use crate::cli_support::{User, demo, text};

/// How many odd files each run of the tests makes.
const IN_EVERY_RUN: usize = 150;

/// How many odd files the test of all files makes, of all models together.
const ALL: usize = 1000;

const N_CTX: u32 = 512;

/// A tensor of an odd file.
#[derive(Clone)]
struct OddTensor {
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
}

/// An odd file that is being made.
#[derive(Clone)]
struct Odd {
    /// Descriptions of the changes.
    changes: Vec<String>,
    metadata: Builder,
    tensors: Vec<OddTensor>,
    /// How many bytes are missing at the file's end.
    missing: u64,
}

/// Pseudo-random numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or(0)
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

impl Odd {
    fn from_header(header: &Header) -> Self {
        let tensor = |tensor: &autoplace::gguf::Tensor| OddTensor {
            name: tensor.name().to_owned(),
            ty: tensor.ty(),
            shape: tensor.shape()[..tensor.n_dims()].to_vec(),
        };
        let metadata = header.vocabulary(u64::MAX).unwrap();
        Self { changes: Vec::new(), metadata, tensors: header.tensors().map(tensor).collect(), missing: 0 }
    }

    fn set(&mut self, what: String, set: impl FnOnce(Builder) -> Builder) {
        let metadata = std::mem::replace(&mut self.metadata, Builder::empty());
        self.metadata = set(metadata);
        self.changes.push(what);
    }

    /// Writes the file. Returns false if that is impossible.
    fn write(&self, path: &Path) -> bool {
        let add = |file: Builder, tensor: &OddTensor| file.tensor(&tensor.name, tensor.ty, &tensor.shape);
        let file = self.tensors.iter().fold(self.metadata.clone(), add);
        if file.write_sparse(path).is_err() {
            return false;
        }
        let open = std::fs::File::options().write(true).open(path).unwrap();
        let length = open.metadata().unwrap().len();
        open.set_len(length.saturating_sub(self.missing)).unwrap();
        true
    }

    /// Makes a random change.
    fn change(&mut self, header: &Header, numbers: &mut Numbers) {
        let architecture = header.architecture().unwrap().to_owned();
        let keys: Vec<(&str, Value<'_>)> =
            header.metadata().filter(|(key, _)| *key != "general.architecture").collect();
        match numbers.below(13) {
            0 | 1 => self.retype(&keys, numbers),
            2 => {
                let key = numbers.one(&keys).0;
                self.set(format!("without {key}"), |file| file.without(key));
            }
            3 => {
                let at = numbers.below(self.tensors.len());
                let tensor = self.tensors.remove(at);
                self.changes.push(format!("without {}", tensor.name));
            }
            4 => {
                let at = numbers.below(self.tensors.len());
                let name = &mut self.tensors[at].name;
                self.changes.push(format!("{name} with another name"));
                name.push_str("_x");
            }
            5 => {
                let names = [
                    "v.patch_embd.weight",
                    "v.blk.0.attn_q.weight",
                    "mm.0.weight",
                    "a.conv1d.1.weight",
                    "extra.weight",
                    "blk.0.extra.weight",
                ];
                let name = (*numbers.one(&names)).to_owned();
                self.changes.push(format!("with {name}"));
                self.tensors.push(OddTensor { name, ty: TensorType::F32, shape: vec![64, 64] });
            }
            6 => {
                let at = numbers.below(self.tensors.len());
                let dim = numbers.below(self.tensors[at].shape.len());
                let tensor = &mut self.tensors[at];
                tensor.shape[dim] += tensor.ty.block_size();
                self.changes.push(format!("{} with the shape {:?}", tensor.name, tensor.shape));
            }
            7 => {
                let at = numbers.below(self.tensors.len());
                let types = [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0, TensorType::I32];
                let tensor = &mut self.tensors[at];
                tensor.ty = *numbers.one(&types);
                self.changes.push(format!("{} as {}", tensor.name, tensor.ty));
            }
            8 | 9 => self.change_vocabulary(header, numbers),
            10 => {
                let alignment = *numbers.one(&[1_u32, 8, 16, 64, 128]);
                self.set(format!("aligned to {alignment}"), |file| file.u32("general.alignment", alignment));
            }
            11 => {
                let suffixes =
                    ["block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size"];
                let key = format!("{architecture}.{}", numbers.one(&suffixes));
                let more = *numbers.one(&[1_u32, 32]);
                let value = header.u32(&key).ok().flatten().unwrap_or(64).saturating_add(more);
                self.set(format!("{key} is {value}"), |file| file.u32(&key, value));
            }
            _ => {
                self.missing = *numbers.one(&[1_u64, 100, 5000]);
                self.changes.push(format!("{} bytes are missing", self.missing));
            }
        }
    }

    /// Gives another type to a key with a number.
    fn retype(&mut self, keys: &[(&str, Value<'_>)], numbers: &mut Numbers) {
        let is_number = |value: &Value<'_>| value.as_number().is_some();
        let keys: Vec<_> = keys.iter().filter(|(_, value)| is_number(value)).collect();
        let (key, value) = *numbers.one(&keys);
        let value = value.as_number().map_or(0.0, |number| number.as_f64().unwrap_or(1.0));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Small numbers of a header.
        let n = value as u32;
        let types = [
            ValueType::U8,
            ValueType::U16,
            ValueType::U32,
            ValueType::U64,
            ValueType::I32,
            ValueType::I64,
            ValueType::F32,
            ValueType::Str,
            ValueType::Bool,
        ];
        let ty = *numbers.one(&types);
        self.set(format!("{key} as {ty}"), |file| match ty {
            ValueType::U8 => file.u8(key, n.min(255) as u8),
            ValueType::U16 => file.u16(key, n.min(65535) as u16),
            ValueType::U64 => file.u64(key, n.into()),
            ValueType::I32 => file.i32(key, n.cast_signed()),
            ValueType::I64 => file.i64(key, n.into()),
            ValueType::F32 => file.f32(key, value as f32),
            ValueType::Str => file.str(key, n.to_string()),
            ValueType::Bool => file.bool(key, n > 0),
            _ => file.u32(key, n),
        });
    }

    fn change_vocabulary(&mut self, header: &Header, numbers: &mut Numbers) {
        let tokens = || -> Vec<Vec<u8>> {
            let list = header.array("tokenizer.ggml.tokens").unwrap().unwrap();
            list.strings().unwrap().map(Result::unwrap).collect()
        };
        let [tokens_key, scores, types, merges] =
            ["tokens", "scores", "token_type", "merges"].map(|name| format!("tokenizer.ggml.{name}"));
        match numbers.below(9) {
            0 => self.set("no tokenizer".to_owned(), |file| file.without("tokenizer.ggml.model")),
            1 => {
                let name = *numbers.one(&["llama", "gpt2", "bert", "no_vocab", "none", "unknown"]);
                self.set(format!("the tokenizer {name}"), |file| file.str("tokenizer.ggml.model", name));
            }
            2 => {
                let name = *numbers.one(&["default", "llama-bpe", "qwen2", "smollm", "nobody-knows"]);
                self.set(format!("the pre-tokenizer {name}"), |file| file.str("tokenizer.ggml.pre", name));
            }
            3 => self.set("tokens that are numbers".to_owned(), |file| file.array_i32(&tokens_key, &[1; 64])),
            4 => {
                let mut all = tokens();
                let (one, other) = (numbers.below(all.len()), numbers.below(all.len()));
                all[one] = all[other].clone();
                self.set(format!("token {one} as token {other}"), |file| file.array_str(&tokens_key, all));
            }
            5 => {
                let n = tokens().len();
                let n = *numbers.one(&[n - 1, n, n + 1, 10]);
                self.set(format!("{n} scores"), |file| file.array_f32(&scores, &vec![0.0; n]));
            }
            6 => {
                let n = tokens().len();
                let n = *numbers.one(&[n - 1, n, n + 1, 10]);
                self.set(format!("{n} types of tokens"), |file| file.array_i32(&types, &vec![1; n]));
            }
            7 => self.set("scores that are words".to_owned(), |file| file.array_str(&scores, ["a"])),
            _ => self.set("merges that are numbers".to_owned(), |file| file.array_i32(&merges, &[1, 2, 3])),
        }
    }
}

/// Whether llama.cpp itself can load the file, without a GPU. The file is not mapped, because ggml fails an assertion
/// for some mapped files.
fn llama_cpp(path: &Path) -> Result<(), String> {
    let params = ModelParams { devices: Some(Vec::new()), load_mode: LoadMode::None, ..ModelParams::default() };
    llama_sys::quietly(|| {
        let model = llama_sys::Model::load(path, params)?;
        Context::new(&model, ContextParams { n_ctx: N_CTX, ..ContextParams::default() }).map(drop)
    })
    .map_err(|error| error.to_string())
}

fn on_host(path: &Path) -> ModelBuilder {
    Model::builder(path).n_ctx(N_CTX).n_gpu_layers(0).isolation(Isolation::None)
}

/// The files that `list` refuses: for each file's name, the reason.
fn listed(user: &User, folder: &Path) -> BTreeMap<String, Option<String>> {
    let json = user.json(&["list", folder.to_str().unwrap()]);
    let name = |path: &Json| Path::new(path.as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
    let models = json["models"].as_array().unwrap().iter();
    let models = models.map(|model| (name(&model["files"][0]), model["refused"].as_str().map(str::to_owned)));
    let skipped = json["skipped"].as_array().unwrap().iter();
    let skipped = skipped.map(|model| (name(&model["path"]), model["why"].as_str().map(str::to_owned)));
    models.chain(skipped).collect()
}

/// Makes the odd files of a model that have these numbers, and compares our results with llama.cpp's. The number of a
/// file decides on its changes.
fn compare(model: &Path, files: Range<usize>) {
    let header = Header::open(model).unwrap();
    let user = User::new();
    let folder = user.path("odd");
    std::fs::create_dir_all(&folder).unwrap();
    let mut taken = 0;
    let (mut differ, mut theirs) = (Vec::new(), BTreeMap::new());
    for file in files.clone() {
        let mut numbers = Numbers(file as u64);
        let name = format!("odd-{file:04}.gguf");
        let path = folder.join(&name);
        let odd = loop {
            let mut odd = Odd::from_header(&header);
            for _ in 0..1 + numbers.below(5) / 4 {
                odd.change(&header, &mut numbers);
            }
            if odd.write(&path) {
                break odd;
            }
        };
        let verdict = llama_cpp(&path);
        taken += usize::from(verdict.is_ok());
        let what = odd.changes.join(", ");
        let ours = [("plan", on_host(&path).plan().map(drop)), ("run", on_host(&path).load().map(drop))];
        for (verb, result) in ours {
            if result.is_ok() != verdict.is_ok() {
                let said = result.err().map(|error| error.to_string());
                differ.push(format!("{name} ({what}): {verb} says {said:?}, llama.cpp {verdict:?}"));
            }
        }
        theirs.insert(name, (what, verdict));
    }
    let listed = listed(&user, &folder);
    for (name, (what, verdict)) in &theirs {
        match listed.get(name) {
            Some(refused) if refused.is_none() == verdict.is_ok() => {}
            said => differ.push(format!("{name} ({what}): list says {said:?}, llama.cpp {verdict:?}")),
        }
    }
    let count = theirs.len();
    println!("{}: {count} odd files ({files:?}), of which llama.cpp takes {taken}", model.display());
    assert!(taken > count / 20 && taken < count * 19 / 20, "the changes are no longer odd: {taken} of {count}");
    assert_eq!(differ, [""; 0], "{}", differ.join("\n"));
}

#[test]
fn plan_list_and_run_refuse_of_odd_files_what_llama_cpp_refuses() {
    compare(Path::new(&demo()), 0..IN_EVERY_RUN);
}

#[test]
#[ignore = "a thousand files take minutes"]
fn plan_list_and_run_refuse_of_a_thousand_odd_files_what_llama_cpp_refuses() {
    let models = env::var("AUTOPLACE_ODD_FILES").unwrap_or_else(|_| demo());
    let models: Vec<PathBuf> = models.split(':').map(PathBuf::from).collect();
    let part = env::var("AUTOPLACE_ODD_FILES_PART").unwrap_or_else(|_| "1/1".to_owned());
    let (part, parts) = part.split_once('/').expect("a part and the number of parts, such as 2/4");
    let (part, parts): (usize, usize) = (part.parse().unwrap(), parts.parse().unwrap());
    for model in &models {
        let count = ALL / models.len();
        compare(model, count * (part - 1) / parts..count * part / parts);
    }
}

#[test]
fn plan_and_list_name_what_a_load_would_be_refused_for() {
    let header = Header::open(demo()).unwrap();
    let user = User::new();
    let folder = user.path("refused");
    std::fs::create_dir_all(&folder).unwrap();
    let no_change = |_: &mut Odd| {};
    let without = |key: &'static str| move |odd: &mut Odd| odd.set(key.to_owned(), |file| file.without(key));
    let vision = |odd: &mut Odd| {
        let (name, ty, shape) = ("v.blk.0.attn_q.weight".to_owned(), TensorType::F32, vec![64, 64]);
        odd.tensors.push(OddTensor { name, ty, shape });
    };
    let wide = |odd: &mut Odd| odd.set("wide".to_owned(), |file| file.u64("tokenizer.ggml.bos_token_id", 1));
    let mut of_tokens = without("tokenizer.ggml.tokens");
    let mut of_model = without("tokenizer.ggml.model");
    type Change<'a> = (&'a str, &'a mut dyn FnMut(&mut Odd), &'a str);
    let changes: [Change<'_>; 5] = [
        ("whole", &mut no_change.clone(), ""),
        ("no-model", &mut of_model, "tokenizer.ggml.model"),
        ("no-tokens", &mut of_tokens, "cannot find tokenizer vocab"),
        ("vision", &mut vision.clone(), "1 tensors of a projector"),
        ("wide", &mut wide.clone(), "tokenizer.ggml.bos_token_id"),
    ];
    let mut expected = BTreeMap::new();
    for (name, change, words) in changes {
        let mut odd = Odd::from_header(&header);
        change(&mut odd);
        let path = folder.join(format!("{name}.gguf"));
        assert!(odd.write(&path), "{name}");
        let path = path.to_str().unwrap();
        match words {
            "" => drop(user.says(&["plan", path])),
            words => user.fails(&["plan", path], 1, &[words, name]),
        }
        expected.insert(format!("{name}.gguf"), words);
    }
    // A model without any tokens is no error of llama.cpp's, but it reads no text.
    let mut no_text = Odd::from_header(&header);
    no_text.set("no text".to_owned(), |file| file.str("tokenizer.ggml.model", "no_vocab"));
    let path = folder.join("no-text.gguf");
    assert!(no_text.write(&path));
    let path = path.to_str().unwrap();
    let run = user.autoplace(&["run", path, "--raw", "x"]);
    assert!(run.status.code() == Some(1) && text(&run.stderr).contains("error: the model has no vocabulary"));
    for said in [user.says(&["plan", path]), user.says(&["list", folder.to_str().unwrap()])] {
        assert_eq!(said.matches("the model has no vocabulary: `run`").count(), 1, "{said}");
    }
    expected.insert("no-text.gguf".to_owned(), "");
    let listed = listed(&user, &folder);
    // The model can be extracted without its projector, and the extracted file is complete.
    let [vision, text, whole] = ["vision", "text", "whole"].map(|name| folder.join(format!("{name}.gguf")));
    let [from, to] = [&vision, &text].map(|path| path.to_str().unwrap());
    let said = user.says(&["extract", from, to]);
    assert!(said.contains("the model without its projector, ") && said.contains("tensors left out: 1"), "{said}");
    assert_eq!(std::fs::read(&text).unwrap(), std::fs::read(&whole).unwrap());
    user.says(&["plan", to]);
    user.fails(&["extract", from, to], 1, &["text.gguf"]);
    user.fails(&["extract", to, from], 1, &["no tensors of a projector"]);
    for (name, refused) in listed {
        let words = expected[&name];
        assert_eq!(refused.is_none(), words.is_empty(), "{name}: {refused:?}");
        assert!(refused.is_none_or(|refused| refused.contains(words)), "{name}");
    }
}
