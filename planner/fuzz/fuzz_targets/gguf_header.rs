//! Any bytes are a header or an error, and whatever a header offers can be read.
#![no_main]

use autoplace_planner::gguf::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file_bytes = data
        .last_chunk()
        .map_or(0, |last| u64::from_le_bytes(*last));
    let Ok(header) = Header::parse_shards([(data.into(), file_bytes)]) else {
        return;
    };
    for (key, value) in header.metadata() {
        assert!(header.get(key).is_some());
        let _ = (header.uint(key), header.str(key));
        let Some(array) = value.as_array() else {
            continue;
        };
        let _ = array.to_u32s();
        array.raw_bytes().unwrap();
        if let Ok(mut strings) = array.strings() {
            while let Some(string) = strings.read_next() {
                string.unwrap();
            }
        }
    }
    for tensor in header.tensors() {
        assert!(header.tensor(tensor.name()).is_some());
        assert!(tensor.elements() > 0);
        assert!(tensor.offset() + tensor.bytes() <= header.file_bytes());
    }
});
