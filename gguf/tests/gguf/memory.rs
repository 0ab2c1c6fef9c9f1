//! The reader uses a bounded amount of heap, for the header of a 70B model and for 10,000 damaged headers.

use autoplace_gguf::Header;
use proptest::prelude::*;
use test_support::counting::peak;
use test_support::headers::{MERGES, TENSORS, TOKENS, llama_70b, read_everything, small};

#[test]
fn the_header_of_a_70b_model_takes_less_than_2_mib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llama-70b.gguf");
    llama_70b().write_sparse(&path).unwrap();

    let (header, bytes) = peak(|| Header::open(&path).unwrap());
    println!("open: {bytes} bytes of heap");
    assert!(bytes <= 2 << 20, "{bytes}");
    assert_eq!(header.tensors().len(), TENSORS);

    let ((tokens, merges), bytes) = peak(|| {
        let count = |key: &str| {
            let strings = header.array(key).unwrap().unwrap().strings().unwrap();
            strings.filter(|string| !string.as_ref().unwrap().is_empty()).count()
        };
        (count("tokenizer.ggml.tokens"), count("tokenizer.ggml.merges"))
    });
    println!("all strings: {bytes} bytes of heap");
    assert_eq!((tokens, merges), (TOKENS, MERGES));
    assert!(bytes <= 1 << 20, "{bytes}");
}

/// One kind of damage to a file: some bytes are replaced by other bytes, or by bytes from another place.
type Damage = (prop::sample::Index, usize, Vec<u8>, Option<prop::sample::Index>);

fn apply((at, gone, put, from): &Damage, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    let end = at.saturating_add(*gone).min(bytes.len());
    let mut put = put.clone();
    if let Some(from) = from {
        let from = from.index(bytes.len());
        put = bytes[from..(from + 40).min(bytes.len())].to_vec();
    }
    bytes.splice(at..end, put);
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    // Small numbers, powers of two and their neighbours, and arbitrary numbers.
    let number = prop_oneof![
        0..300_u64,
        (0..64_u32, -1..=1_i64).prop_map(|(bit, off)| (1_u64 << bit).wrapping_add_signed(off)),
        any::<u64>(),
    ];
    let number = number.prop_map(|number| number.to_le_bytes().to_vec());
    let one = any::<u8>().prop_map(|byte| (1, vec![byte]));
    let change = prop_oneof![
        4 => one,
        4 => number.clone().prop_map(|number| (8, number)),
        1 => number.prop_map(|number| (0, number)),
        1 => (1..40_usize).prop_map(|gone| (gone, Vec::new())),
        1 => Just((usize::MAX, Vec::new())),
    ];
    let from = prop_oneof![9 => Just(None), 1 => index().prop_map(Some)];
    (index(), change, from).prop_map(|(at, (gone, put), from)| (at, gone, put, from))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn ten_thousand_damaged_headers_are_read_or_refused_within_bounds(
        damages in prop::collection::vec(damage(), 1..4),
        file_bytes in prop_oneof![Just(0_u64), any::<u64>()],
    ) {
        // Most of the tensor data is left out, so that most of the damage hits the header.
        let mut bytes = small().encoded().unwrap().0;
        bytes.resize(bytes.len() + 100, 0);
        for damage in &damages {
            apply(damage, &mut bytes);
        }
        let len = bytes.len();
        let (result, held) = peak(|| Header::parse_shards([(bytes.into(), file_bytes)]));
        // The bound is the sum of the reader's window, the copy of the bytes, and a few times the size of the header's
        // content.
        prop_assert!(held <= (256 << 10) + 16 * len + 4096, "{held} bytes of heap for {len} in the file");
        match result {
            Ok(header) => read_everything(&header),
            Err(error) => prop_assert!(error.to_string().starts_with("<memory>: ")),
        }
    }
}
