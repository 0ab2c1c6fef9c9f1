//! If headers are read in ranges, they are equal to the headers of the whole files, and only a part of the bytes is
//! transferred.

use autoplace_hub::{Candidate, Error, PlannedFile, Preference, choose};
use autoplace_planner::gguf::{Builder, Header, TensorType as T, Value};
use autoplace_planner::machine::gib;
use autoplace_planner::plan::Request;

use crate::choice::{QUANTS, machine};
use crate::world::{World, repository};
use test_support::hub_server::{Content, Fault};
use test_support::synthetic::shapes::{LLAMA_8B, Shape, TINY};

/// A vocabulary like that of Llama 3: tokens, types of tokens, and merges.
struct Vocabulary {
    tokens: usize,
    merges: usize,
    /// The prefix that all tokens have.
    token: &'static str,
    /// The last merge.
    last: &'static str,
}

const LLAMA_3: Vocabulary = Vocabulary { tokens: 128_256, merges: 280_147, token: "token", last: "an end" };

/// The keys before and after the vocabulary are different in each quantisation, and so are their lengths.
fn model(quant: &str, types: (T, T, T), vocabulary: &Vocabulary) -> Builder {
    let Vocabulary { tokens, merges, token, last } = vocabulary;
    let kinds: Vec<i32> = (0..*tokens as i32).map(|n| 1 + n % 3).collect();
    let merges = (0..*merges).map(|n| format!("merge {n}")).chain([(*last).to_owned()]);
    Shape { types, ..LLAMA_8B }
        .builder()
        .str("general.name", format!("A thing in {quant}"))
        .str("tokenizer.ggml.model", "gpt2")
        .array_str("tokenizer.ggml.tokens", (0..*tokens).map(|n| format!("{token}{n}")))
        .array_i32("tokenizer.ggml.token_type", &kinds)
        .array_str("tokenizer.ggml.merges", merges)
        .u32("tokenizer.ggml.bos_token_id", 128_000)
        .str("quantize.imatrix.file", quant.repeat(9))
}

impl World {
    fn headers(&self) -> Vec<Header> {
        let hub = self.hub();
        hub.headers(&repository(&hub).unwrap()).into_iter().map(Result::unwrap).collect()
    }
}

/// A repository of files without data, the headers that are expected, and the size of these headers together.
fn hollow(models: impl IntoIterator<Item = (String, Builder)>) -> (World, Vec<Header>, usize) {
    let (mut files, mut whole, mut header_bytes) = (Vec::new(), Vec::new(), 0);
    for (name, model) in models {
        let (head, bytes) = model.encoded().unwrap();
        whole.push(Header::parse_shards([(head.clone().into(), bytes)]).unwrap());
        header_bytes += head.len();
        files.push((name, Content::hollow(head, bytes)));
    }
    (World::new(files.iter().map(|(name, file)| (&name[..], file.clone()))), whole, header_bytes)
}

fn assert_all_same(found: &[Header], whole: &[Header]) {
    assert_eq!(found.len(), whole.len());
    found.iter().zip(whole).for_each(|(found, whole)| assert_same(found, whole));
}

fn assert_same(found: &Header, whole: &Header) {
    assert!(
        found.tensors().map(|tensor| format!("{tensor:?}")).eq(whole.tensors().map(|tensor| format!("{tensor:?}")))
    );
    assert_eq!((found.file_bytes(), found.metadata().len()), (whole.file_bytes(), whole.metadata().len()));
    for ((key, a), (other, b)) in found.metadata().zip(whole.metadata()) {
        assert_eq!(key, other);
        match (a, b) {
            (Value::Array(a), Value::Array(b)) => {
                assert_eq!((a.element_type(), a.len()), (b.element_type(), b.len()), "{key}");
                assert!(a.raw_bytes().unwrap() == b.raw_bytes().unwrap(), "{key}");
            }
            (a, b) => assert_eq!(a, b, "{key}"),
        }
    }
}

#[test]
fn eight_quantisations_cost_less_than_30_mb_and_are_chosen_from_alike() {
    let named = |(quant, types)| (format!("thing-{quant}.gguf"), model(quant, types, &LLAMA_3));
    let mut models: Vec<_> = QUANTS.into_iter().map(named).collect();
    models.sort_by(|a, b| a.0.cmp(&b.0));
    let (world, whole, all) = hollow(models);
    let (repository, headers) = (repository(&world.hub()).unwrap(), world.headers());
    assert!(all > 60_000_000 && world.server.sent() < 30_000_000, "{} of {all} bytes", world.server.sent());
    assert!(repository.candidates.iter().map(Candidate::bytes).eq(whole.iter().map(Header::file_bytes)));
    assert_all_same(&headers, &whole);

    let machine = machine("RTX 3060 12GB", gib(7));
    let choice = |headers: &[Header]| {
        let of = |(candidate, header): (&Candidate, &Header)| {
            PlannedFile::new(candidate.name(), candidate.quant().map(str::to_owned), header.clone())
        };
        let files: Vec<_> = repository.candidates.iter().zip(headers).map(of).collect();
        choose(&files, &machine, &Request::new(), Preference::Auto)
    };
    let chosen = choice(&headers);
    assert_eq!(chosen, choice(&whole));
    assert!(chosen.chosen.is_some(), "{}", chosen.reason);
}

#[test]
fn another_vocabulary_is_not_taken_for_the_first_one() {
    let others = [
        LLAMA_3,
        Vocabulary { token: "other", ..LLAMA_3 },
        Vocabulary { last: "AN END", ..LLAMA_3 },
        Vocabulary { merges: 280_148, ..LLAMA_3 },
        Vocabulary { tokens: 128_255, ..LLAMA_3 },
        Vocabulary { tokens: 10, merges: 0, ..LLAMA_3 },
    ];
    let named = |(n, other)| (format!("thing-{n}.gguf"), model("Q4_K_M", QUANTS[3].1, other));
    let (world, whole, _) = hollow(others.iter().enumerate().map(named));
    assert_all_same(&world.headers(), &whole);
}

#[test]
fn a_connection_that_breaks_or_knows_no_ranges_gives_the_same_headers() {
    let small = Vocabulary { tokens: 60_000, merges: 60_000, ..LLAMA_3 };
    let named = |n: usize| (format!("thing-{n}.gguf"), model(QUANTS[n].0, QUANTS[n].1, &small));
    let (world, whole, _) = hollow((0..3).map(named));
    world.server.fail("/storage/", [Fault::Cut(5000), Fault::Status(503, "")]);
    assert_all_same(&world.headers(), &whole);
    assert_eq!(world.server.faults_left(), 0);
}

#[test]
fn a_split_model_has_the_header_of_all_its_files() {
    let shards = (0..3u16).map(|n| {
        let shard = Builder::new("llama").u16("split.no", n).u16("split.count", 3).i32("split.tensors.count", 3);
        let shard = shard.tensor(&format!("blk.{n}.attn_q.weight"), T::F32, &[4, 1 << 20]);
        shard.encoded().unwrap()
    });
    let shards: Vec<(Vec<u8>, u64)> = shards.collect();
    let whole = Header::parse_shards(shards.iter().map(|(head, bytes)| (head.clone().into(), *bytes))).unwrap();
    let names: Vec<String> = (1..=3).map(|n| format!("thing-0000{n}-of-00003.gguf")).collect();
    let files = names.iter().zip(shards).map(|(name, (head, bytes))| (&name[..], Content::hollow(head, bytes)));
    let found = World::new(files).headers();
    assert_eq!(found[0].shards().len(), 3);
    assert_all_same(&found, &[whole]);
}

#[test]
fn a_file_that_is_not_gguf_is_an_error_of_that_file_alone() {
    let header = model("Q4_K_M", QUANTS[3].1, &Vocabulary { tokens: 3, merges: 0, ..LLAMA_3 });
    let (head, bytes) = header.encoded().unwrap();
    let files = [
        ("thing-Q2_K.gguf", Content::large(b"<html>".repeat(1000))),
        ("thing-Q3_K.gguf", Content::large(Vec::new())),
        ("thing-Q4_K_M.gguf", Content::hollow(head.clone(), bytes)),
        ("thing-Q5_K.gguf", Content::large(head[..200].to_vec())),
        ("thing-Q6_K.gguf", Content::hollow(head, bytes - 1)),
    ];
    let hub = World::new(files).hub();
    let headers = hub.headers(&repository(&hub).unwrap());
    for (n, header) in headers.iter().enumerate() {
        match header {
            Ok(_) => assert_eq!(n, 2),
            Err(error) => assert!(matches!(error, Error::Header { file, .. } if file.contains("thing-Q")), "{error}"),
        }
    }
    assert!(headers[2].is_ok());
}

#[test]
fn a_file_of_the_cache_is_read_there() {
    let world = World::new([("thing-F32.gguf", Content::large(TINY.builder().to_bytes().unwrap()))]);
    let repository = repository(&world.hub()).unwrap();
    world.hub().fetch(&repository.candidates[0], |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    world.server.seen();
    let headers = world.hub().headers(&repository);
    assert_eq!(headers[0].as_ref().unwrap().architecture().unwrap(), "llama");
    assert!(world.server.seen().is_empty());
}
