//! Measures the time to read the header of a 70B model from a file. The goal is 5 ms.

use std::hint::black_box;

use autoplace_gguf::Header;
use criterion::{Criterion, criterion_group, criterion_main};
use test_support::headers;

fn read(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("llama-70b.gguf");
    let model = headers::llama_70b();
    model.write_sparse(&path).expect("a sparse file");

    let mut group = c.benchmark_group("gguf_header");
    group.bench_function("open_70b", |b| {
        b.iter(|| Header::open(black_box(&path)).expect("a header"));
    });

    let header = Header::open(&path).expect("a header");
    group.bench_function("find_every_tensor_70b", |b| {
        let names: Vec<_> = header.tensors().map(|t| t.name().to_owned()).collect();
        b.iter(|| names.iter().filter_map(|n| header.tensor(n)).count());
    });
    group.bench_function("read_every_token_70b", |b| {
        b.iter(|| {
            let tokens = header.array("tokenizer.ggml.tokens").expect("an array");
            let tokens = tokens.expect("tokens").strings().expect("strings");
            tokens.map(|token| token.expect("a token").len()).sum::<usize>()
        });
    });
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
