//! Limits how many entries the codebooks of a stream have together. The Vorbis decoder does not limit this.
//!
//! In the decoder, a codebook may have 131,072 entries, and a stream may have 256 codebooks. With these, a header of
//! some kilobytes would lead to tables of gigabytes. The codebooks that encoders write have some ten thousand entries
//! together.
//!
//! The format of a codebook is that of the Vorbis I specification, section 3.2.1.

/// Maximum number of entries in all codebooks of a stream together. With this number, their tables take less than 128
/// MiB.
const MAX_ENTRIES: u64 = 65_536;

/// The length of the identification header, which comes before the setup header.
const IDENTIFICATION: usize = 30;

/// Fails for a stream whose codebooks would take too much memory. `headers` are its identification and its setup
/// header.
pub(super) fn check(headers: &[u8]) -> Result<(), String> {
    let entries = entries(headers).ok_or("its codebooks are cut short or missing")?;
    if entries > MAX_ENTRIES {
        return Err(format!(
            "its codebooks have {entries} or more entries together; at most {MAX_ENTRIES} are allowed"
        ));
    }
    Ok(())
}

/// The number of entries in all codebooks. Counting ends after the codebook with which the limit is exceeded.
fn entries(headers: &[u8]) -> Option<u64> {
    let setup = headers.get(IDENTIFICATION..)?.strip_prefix(b"\x05vorbis")?;
    let mut bits = Bits { bytes: setup, at: 0 };
    let codebooks = bits.take(8)? + 1;
    let mut sum = 0;
    for _ in 0..codebooks {
        sum += codebook(&mut bits)?;
        if sum > MAX_ENTRIES {
            break;
        }
    }
    Some(sum)
}

/// Skips one codebook. Returns its number of entries.
fn codebook(bits: &mut Bits<'_>) -> Option<u64> {
    const SYNC: u64 = 0x56_4342;
    if bits.take(24)? != SYNC {
        return None;
    }
    let (dimensions, entries) = (bits.take(16)?, bits.take(24)?);
    if entries > MAX_ENTRIES {
        return Some(entries);
    }
    let is_ordered = bits.take(1)? == 1;
    if is_ordered {
        bits.take(5)?;
        let mut listed = 0;
        while listed < entries {
            let width = u64::BITS - (entries - listed).leading_zeros();
            listed += bits.take(width)?;
        }
    } else {
        let is_sparse = bits.take(1)? == 1;
        for _ in 0..entries {
            if !is_sparse || bits.take(1)? == 1 {
                bits.take(5)?;
            }
        }
    }
    let values = match bits.take(4)? {
        0 => return Some(entries),
        1 => values_of_lattice(entries, dimensions),
        2 => entries * dimensions,
        _ => return None,
    };
    // Skips the smallest value and the step.
    bits.take(32)?;
    bits.take(32)?;
    let width = bits.take(4)? + 1;
    let is_sequence = bits.take(1);
    bits.skip(values.checked_mul(width)?);
    is_sequence.map(|_| entries)
}

/// The largest number for which the number to the power of `dimensions` is at most `entries`.
fn values_of_lattice(entries: u64, dimensions: u64) -> u64 {
    let dimensions = u32::try_from(dimensions).unwrap_or(u32::MAX);
    let fits = |value: u64| value.checked_pow(dimensions).is_some_and(|power| power <= entries);
    (1..=entries).take_while(|value| fits(*value)).last().unwrap_or(0)
}

/// The bits of some bytes. The lowest bit of each byte comes first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl Bits<'_> {
    /// The next bits as a number.
    fn take(&mut self, count: u32) -> Option<u64> {
        let mut number = 0;
        for bit in 0..count {
            let byte = self.bytes.get(usize::try_from(self.at / 8).ok()?)?;
            number |= u64::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(number)
    }

    fn skip(&mut self, count: u64) {
        self.at = self.at.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers with codebooks that have these dimensions, entries and types of lookup. All codes have the same length.
    fn headers(codebooks: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut bits: Vec<bool> = Vec::new();
        let mut put = |value: u64, count: u32| bits.extend((0..count).map(|bit| value >> bit & 1 == 1));
        put(codebooks.len() as u64 - 1, 8);
        for &(dimensions, entries, lookup) in codebooks {
            put(0x56_4342, 24);
            put(dimensions, 16);
            put(entries, 24);
            put(1, 1);
            put(3, 5);
            put(entries, u64::BITS - entries.leading_zeros());
            put(lookup, 4);
            if lookup > 0 {
                let values = if lookup == 1 { values_of_lattice(entries, dimensions) } else { entries * dimensions };
                put(0, 64);
                put(3, 4);
                put(0, 1);
                (0..values).for_each(|value| put(value, 4));
            }
        }
        let mut bytes = vec![0; IDENTIFICATION];
        bytes.extend(b"\x05vorbis");
        bytes.extend(bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | u8::from(*bit))));
        bytes
    }

    #[test]
    fn the_entries_of_all_codebooks_are_counted_behind_each_kind_of_lookup() {
        assert_eq!(entries(&headers(&[(4, 81, 1), (2, 12, 2), (1, 40, 0)])), Some(81 + 12 + 40));
        assert_eq!(values_of_lattice(81, 4), 3);
        assert_eq!(values_of_lattice(80, 4), 2);
    }

    #[test]
    fn codebooks_with_too_many_entries_together_are_refused() {
        check(&headers(&[(1, 60_000, 0), (1, 5_536, 0)])).unwrap();
        let error = check(&headers(&[(1, 60_000, 0), (1, 5_537, 0)])).unwrap_err();
        assert!(error.contains("65537 or more entries together; at most 65536"), "{error}");
        let cut = headers(&[(4, 81, 1)]);
        assert!(check(&cut[..cut.len() - 20]).unwrap_err().contains("cut short"));
    }
}
