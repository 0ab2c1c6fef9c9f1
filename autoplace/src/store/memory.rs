//! The bytes that the store's collections take.

use std::collections::HashMap;
use std::mem::size_of;

/// Maximum bytes that an allocator adds to an allocation, after it has rounded the allocation up to 16 bytes.
const OF_AN_ALLOCATION: u64 = 16;

/// Bytes of an allocation of `bytes` bytes; 0 if `bytes` is 0.
pub(super) fn allocated(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { (bytes as u64).next_multiple_of(16) + OF_AN_ALLOCATION }
}

/// Bytes of a map's table (hashbrown). The number of buckets is a power of two, at most 7/8 of the buckets are full,
/// and each has a control byte.
pub(super) fn of_map<K, V, S>(map: &HashMap<K, V, S>) -> u64 {
    if map.capacity() == 0 {
        return 0;
    }
    let buckets = (map.capacity() * 8 / 7).next_power_of_two().max(4);
    allocated(buckets * (size_of::<(K, V)>() + 1) + 16)
}
