//! The places of tensors in one compute buffer: ggml's `ggml_dyn_tallocr` (ggml-alloc.c:130-395), which keeps the gaps in a list
//! and takes the one that fits best.

/// A gap.
#[derive(Debug, Clone, Copy)]
struct Gap {
    offset: u64,
    size: u64,
}

/// A buffer of its own; a backend whose buffers are limited has several.
#[derive(Debug, Clone, Default)]
struct Chunk {
    /// In the order of their offsets; the last reaches to the end.
    gaps: Vec<Gap>,
    max_size: u64,
}

/// Where a tensor was put.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Address {
    chunk: usize,
    offset: u64,
}

impl Address {
    /// The buffer, and the bytes before it.
    pub(super) const fn parts(self) -> (u64, u64) {
        (self.chunk as u64, self.offset)
    }

    /// So many bytes further on.
    pub(super) const fn beyond(self, bytes: u64) -> Self {
        Self {
            chunk: self.chunk,
            offset: self.offset.saturating_add(bytes),
        }
    }
}

/// `GGML_VBUFFER_MAX_CHUNKS`.
const MAX_CHUNKS: usize = 16;
/// `SIZE_MAX / 2`.
const ENDLESS: u64 = u64::MAX / 2;

/// The allocator of one buffer type.
#[derive(Debug, Clone, Default)]
pub(super) struct Allocator {
    alignment: u64,
    max_chunk: u64,
    /// The first `used` of them are in use; the others wait with their memory.
    chunks: Vec<Chunk>,
    used: usize,
}

impl Allocator {
    /// Begins anew. `alignment` is a power of two, `max_chunk` the largest buffer of the backend.
    pub(super) fn reset(&mut self, alignment: u64, max_chunk: u64) {
        self.alignment = alignment;
        self.max_chunk = max_chunk.min(ENDLESS);
        self.used = 0;
    }

    /// Bytes of each buffer.
    pub(super) fn chunks(&self) -> impl Iterator<Item = u64> {
        self.chunks[..self.used].iter().map(|chunk| chunk.max_size)
    }

    /// Appends all gaps.
    pub(super) fn describe(&self, state: &mut Vec<u64>) {
        for chunk in &self.chunks[..self.used] {
            state.push(chunk.gaps.len() as u64);
            state.extend(chunk.gaps.iter().flat_map(|gap| [gap.offset, gap.size]));
        }
        state.push(u64::MAX);
    }

    /// A size as it is accounted for.
    pub(super) const fn padded(&self, size: u64) -> u64 {
        crate::memory::pad(size, self.alignment)
    }

    /// `ggml_dyn_tallocr_alloc`: the smallest gap that is large enough, but the last of a chunk only where no other is.
    pub(super) fn alloc(&mut self, size: u64) -> Address {
        let size = self.padded(size);
        let (chunk, gap) = self
            .best_gap(size)
            .or_else(|| self.best_end(size))
            .unwrap_or_else(|| (self.new_chunk(size), 0));
        let in_chunk = &mut self.chunks[chunk];
        let found = &mut in_chunk.gaps[gap];
        let address = Address {
            chunk,
            offset: found.offset,
        };
        found.offset = found.offset.saturating_add(size);
        found.size = found.size.saturating_sub(size);
        if found.size == 0 {
            in_chunk.gaps.remove(gap);
        }
        in_chunk.max_size = in_chunk.max_size.max(address.offset.saturating_add(size));
        address
    }

    /// Of equally good gaps ggml takes the last one of the last chunk that has any.
    fn best_gap(&self, size: u64) -> Option<(usize, usize)> {
        let mut best = None;
        for (c, chunk) in self.chunks[..self.used].iter().enumerate() {
            let mut best_size = u64::MAX;
            let inner = chunk.gaps.len().saturating_sub(1);
            for (g, gap) in chunk.gaps[..inner].iter().enumerate() {
                if gap.size >= size && gap.size <= best_size {
                    best = Some((c, g));
                    best_size = gap.size;
                }
            }
        }
        best
    }

    /// The end of the chunk that grows least, or, if one need not grow, wastes least.
    fn best_end(&self, size: u64) -> Option<(usize, usize)> {
        let mut best = None;
        let mut best_reuse = i64::MIN;
        for (c, chunk) in self.chunks[..self.used].iter().enumerate() {
            let Some((last, gap)) = chunk.gaps.iter().enumerate().next_back() else {
                continue;
            };
            // As ggml computes it: modulo 2^64.
            let reuse = chunk
                .max_size
                .wrapping_sub(gap.offset)
                .wrapping_sub(size)
                .cast_signed();
            let better_reuse = best_reuse < 0 && reuse > best_reuse;
            let better_fit = reuse >= 0 && reuse < best_reuse;
            if gap.size >= size && (better_reuse || better_fit) {
                best = Some((c, last));
                best_reuse = reuse;
            }
        }
        best
    }

    fn new_chunk(&mut self, min_size: u64) -> usize {
        // llama.cpp ends the process when the endless sixteenth is full, which no memory is large enough for.
        let index = self.used.min(MAX_CHUNKS - 1);
        self.used = index + 1;
        if self.chunks.len() < self.used {
            self.chunks.push(Chunk::default());
        }
        let size = if index == MAX_CHUNKS - 1 {
            ENDLESS
        } else {
            min_size.max(self.max_chunk)
        };
        let chunk = &mut self.chunks[index];
        chunk.max_size = 0;
        chunk.gaps.clear();
        chunk.gaps.push(Gap { offset: 0, size });
        index
    }

    /// `ggml_dyn_tallocr_free_bytes`: makes a gap, or widens its neighbours.
    pub(super) fn free(&mut self, address: Address, size: u64) {
        let size = self.padded(size);
        let gaps = &mut self.chunks[address.chunk].gaps;
        let end = address.offset.saturating_add(size);
        for i in 0..gaps.len() {
            if gaps[i].offset.saturating_add(gaps[i].size) == address.offset {
                gaps[i].size = gaps[i].size.saturating_add(size);
                if i + 1 < gaps.len() && end == gaps[i + 1].offset {
                    gaps[i].size = gaps[i].size.saturating_add(gaps[i + 1].size);
                    gaps.remove(i + 1);
                }
                return;
            }
            if end == gaps[i].offset {
                gaps[i].offset = address.offset;
                gaps[i].size = gaps[i].size.saturating_add(size);
                if i > 0 && gaps[i - 1].offset.saturating_add(gaps[i - 1].size) == gaps[i].offset {
                    gaps[i - 1].size = gaps[i - 1].size.saturating_add(gaps[i].size);
                    gaps.remove(i);
                }
                return;
            }
        }
        let gap = Gap {
            offset: address.offset,
            size,
        };
        let at = gaps.partition_point(|gap| gap.offset < address.offset);
        gaps.insert(at, gap);
    }
}

#[cfg(test)]
mod tests {
    use super::Allocator;

    fn allocator(max_chunk: u64) -> Allocator {
        let mut allocator = Allocator::default();
        allocator.reset(32, max_chunk);
        allocator
    }

    fn size(buffer: &Allocator) -> u64 {
        buffer.chunks().sum()
    }

    #[test]
    fn sizes_are_padded_and_the_buffer_is_as_large_as_its_largest_moment() {
        let mut buffer = allocator(u64::MAX);
        let a = buffer.alloc(1);
        let b = buffer.alloc(33);
        assert_eq!((a.offset, b.offset), (0, 32));
        assert_eq!(size(&buffer), 96);
        buffer.free(b, 33);
        buffer.alloc(40);
        assert_eq!(size(&buffer), 96);
    }

    #[test]
    fn the_gap_that_fits_best_is_taken_before_the_end() {
        let mut buffer = allocator(u64::MAX);
        let wide = buffer.alloc(320);
        buffer.alloc(32);
        let narrow = buffer.alloc(64);
        buffer.alloc(32);
        buffer.free(wide, 320);
        buffer.free(narrow, 64);
        assert_eq!(buffer.alloc(64), narrow);
        assert_eq!(buffer.alloc(64), wide);
    }

    #[test]
    fn neighbouring_gaps_become_one() {
        let mut buffer = allocator(u64::MAX);
        let parts = [0; 3].map(|_| buffer.alloc(64));
        buffer.alloc(32);
        for part in [0, 2, 1] {
            buffer.free(parts[part], 64);
        }
        assert_eq!(buffer.alloc(192), parts[0]);
    }

    #[test]
    fn a_backend_with_limited_buffers_gets_several() {
        let mut buffer = allocator(1024);
        let a = buffer.alloc(1000);
        let b = buffer.alloc(1000);
        let larger_than_any = buffer.alloc(5000);
        assert_eq!([a.chunk, b.chunk, larger_than_any.chunk], [0, 1, 2]);
        assert_eq!(size(&buffer), 1024 + 1024 + 5024);
        buffer.free(a, 1000);
        assert_eq!(buffer.alloc(64).chunk, 0);
    }
}
