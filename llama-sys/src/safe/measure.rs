//! Measures how long ggml's operations take on a device. The graphs are like llama.cpp's, and their data lie where a
//! load would put them.

use std::ptr::NonNull;
use std::time::Duration;

use crate::raw;
use crate::safe::call::{self, Error};
use crate::safe::device::{Backend, Device};
use crate::safe::model::tensor_types;

/// A device that is open for measurements.
#[derive(Debug)]
pub struct Bench {
    raw: NonNull<raw::shim_bench>,
}

// SAFETY: a ggml backend belongs to no thread (llama.cpp moves contexts with their backends between threads), and
// `Bench` is used only through `&mut`.
unsafe impl Send for Bench {}

/// One of ggml's operations. Sizes are numbers of elements. `n_tokens` tokens are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are llama.cpp's")]
pub enum Operation {
    /// A matrix is multiplied with tokens (`MUL_MAT`). The type is given by ggml's number.
    Matrix { type_id: u32, n_in: u32, n_out: u32, n_tokens: u32 },
    /// Experts are multiplied with the tokens that use them (`MUL_MAT_ID`). Each expert is a matrix of this size.
    Experts { type_id: u32, n_in: u32, n_out: u32, n_expert: u32, n_used: u32, n_tokens: u32 },
    /// Fused attention (`FLASH_ATTN_EXT`), in which each token sees all `n_kv` cells.
    Attention { type_id: u32, head_size: u32, n_head: u32, n_head_kv: u32, n_kv: u32, n_tokens: u32 },
    /// A block's computations except for its matrices and its attention: norms, rotations, writes to the cache, an
    /// activation, sums.
    Block { type_id: u32, n_embd: u32, n_ff: u32, head_size: u32, n_head: u32, n_head_kv: u32, n_tokens: u32 },
    /// The computations with which a block chooses experts and adds up their results.
    Routing { n_embd: u32, n_expert: u32, n_used: u32, n_tokens: u32 },
}

/// How long a graph took, and how many bytes it read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The lower quartile of the times of several runs. A low quartile is used because other programs can only lengthen
    /// a run.
    pub graph: Duration,
    /// The bytes of weights, or of keys and values, that the graph reads.
    pub bytes: u64,
}

/// How long transfers to a device and back take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkTiming {
    /// A copy from the host's plain memory to the device.
    pub upload: Duration,
    /// A copy from the device.
    pub download: Duration,
    /// Three steps together: a token's activations are copied to the device, an operation computes with them, and the
    /// result is copied back.
    pub crossing: Duration,
}

#[allow(clippy::unnecessary_cast, reason = "C's enumerations are signed on Windows")]
const F32: u32 = raw::GGML_TYPE_F32 as u32;
/// The maximum of each size. With it, the product of three sizes fits into 64 bits.
const MAX_SIZE: u32 = 1 << 20;

/// The maximum number of nodes in a graph (native/rates.cpp, `max_tensors`).
const MAX_NODES: u64 = 8192;

impl Bench {
    /// Opens a device. The CPU computes with `threads` threads. With `repack` the CPU's weights are rearranged for its
    /// instruction set. A load does the same unless one of its GPUs [pins host memory](Device::pins_host_memory).
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the device does not open; [`Error::InvalidParameter`] for 0 threads.
    pub fn new(device: &Device, threads: u32, repack: bool) -> Result<Self, Error> {
        Backend::init()?;
        let n_threads = i32::try_from(threads).ok().filter(|&n| n > 0);
        let n_threads =
            n_threads.ok_or_else(|| Error::parameter("n_threads", threads, "there must be at least one thread"))?;
        let bench = call::checked(|error| {
            // SAFETY: the device is registered, and the error slot is valid.
            unsafe { raw::shim_bench_new(device.as_ptr(), n_threads, repack, error) }
        })
        .map_err(|failure| Error::Call { what: "opening a device to measure it", failure })?;
        // The shim returns NULL only together with an error.
        let raw = NonNull::new(bench).expect("a bench or an error");
        Ok(Self { raw })
    }

    /// Computes a graph that contains the operation `n_repeat` times, each with its own weights or cache. The graph is
    /// computed again and again for the time `budget`, but at least three times. Returns `None` if the device does not
    /// support this operation or has no memory for it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for impossible sizes; [`Error::Call`] if the device fails.
    pub fn time(&mut self, operation: &Operation, n_repeat: u32, budget: Duration) -> Result<Option<Timing>, Error> {
        let native = operation.to_native(n_repeat)?;
        let mut timing = raw::shim_timing { graph_ns: 0, bytes: 0 };
        let budget = nanoseconds(budget);
        let done = call::checked(|error| {
            // SAFETY: the bench is open, and every pointer is valid. `to_native` has checked ggml's assertions: whole
            // blocks, and heads that share keys evenly (ggml.c, ggml_new_tensor, ggml_flash_attn_ext).
            unsafe {
                let (native, timing) = (&raw const native, &raw mut timing);
                raw::shim_bench_time(self.raw.as_ptr(), native, budget, timing, error)
            }
        })
        .map_err(|failure| Error::Call { what: "measuring an operation", failure })?;
        Ok((done == raw::SHIM_MEASURED_DONE)
            .then(|| Timing { graph: Duration::from_nanos(timing.graph_ns), bytes: timing.bytes }))
    }

    /// Measures copies of `bytes` bytes to the device and back, and of `width` activations. All measurements together
    /// take the time `budget`. Returns `None` if there is not enough memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for impossible sizes; [`Error::Call`] if the device fails.
    pub fn link(&mut self, bytes: u32, width: u32, budget: Duration) -> Result<Option<LinkTiming>, Error> {
        if bytes == 0 || width == 0 || width > MAX_SIZE {
            let given = format!("{bytes} bytes, {width} activations");
            return Err(Error::parameter(
                "link",
                given,
                "both must be at least 1, and there are at most 1048576 activations",
            ));
        }
        let mut link = raw::shim_link { upload_ns: 0, download_ns: 0, crossing_ns: 0 };
        let (bytes, width, budget) = (bytes as usize, width as usize, nanoseconds(budget));
        let done = call::checked(|error| {
            // SAFETY: the bench is open, and every pointer is valid.
            unsafe {
                let link = &raw mut link;
                raw::shim_bench_link(self.raw.as_ptr(), bytes, width, budget, link, error)
            }
        })
        .map_err(|failure| Error::Call { what: "measuring a link", failure })?;
        Ok((done == raw::SHIM_MEASURED_DONE).then(|| LinkTiming {
            upload: Duration::from_nanos(link.upload_ns),
            download: Duration::from_nanos(link.download_ns),
            crossing: Duration::from_nanos(link.crossing_ns),
        }))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: from shim_bench_new, freed once.
        unsafe { raw::shim_bench_free(self.raw.as_ptr()) }
    }
}

impl Operation {
    fn to_native(self, n_repeat: u32) -> Result<raw::shim_operation, Error> {
        // The kind, the type, the unit of which rows must be a multiple, and the sizes: of matrices, of experts, of
        // heads.
        let (kind, type_id, row, [n_in, n_out], [n_expert, n_used], [head_size, n_head, n_head_kv, n_kv], n_tokens) =
            match self {
                Self::Matrix { type_id, n_in, n_out, n_tokens } => {
                    (raw::SHIM_OPERATION_MATRIX, type_id, n_in, [n_in, n_out], [1; 2], [1; 4], n_tokens)
                }
                Self::Experts { type_id, n_in, n_out, n_expert, n_used, n_tokens } => {
                    let experts = [n_expert, n_used];
                    (raw::SHIM_OPERATION_EXPERTS, type_id, n_in, [n_in, n_out], experts, [1; 4], n_tokens)
                }
                Self::Attention { type_id, head_size, n_head, n_head_kv, n_kv, n_tokens } => {
                    let heads = [head_size, n_head, n_head_kv, n_kv];
                    (raw::SHIM_OPERATION_ATTENTION, type_id, head_size, [1; 2], [1; 2], heads, n_tokens)
                }
                Self::Block { type_id, n_embd, n_ff, head_size, n_head, n_head_kv, n_tokens } => {
                    let heads = [head_size, n_head, n_head_kv, 1];
                    (raw::SHIM_OPERATION_BLOCK, type_id, head_size, [n_embd, n_ff], [1; 2], heads, n_tokens)
                }
                Self::Routing { n_embd, n_expert, n_used, n_tokens } => {
                    (raw::SHIM_OPERATION_ROUTING, F32, 1, [n_embd, 1], [n_expert, n_used], [1; 4], n_tokens)
                }
            };
        let wrong = |reason| {
            let given = format!("{self:?}");
            Err(Error::parameter("operation", given, reason))
        };
        let sizes = [n_in, n_out, n_expert, n_used, head_size, n_head, n_head_kv, n_kv, n_tokens, n_repeat];
        if !sizes.iter().all(|size| (1..=MAX_SIZE).contains(size)) {
            return wrong("every size must be 1 to 1048576");
        }
        let known = tensor_types()?;
        let Some(info) = known.get(type_id as usize).filter(|info| info.type_size > 0) else {
            return wrong("ggml has no tensor type of this number");
        };
        if !u64::from(row).is_multiple_of(info.block_size) {
            return wrong("a row must be a whole number of blocks");
        }
        if n_used > n_expert || n_head % n_head_kv != 0 {
            return wrong("n_used must be at most n_expert, and n_head a multiple of n_head_kv");
        }
        // A block has up to twenty nodes. Each expert that is used adds two more: a sum and a view.
        let nodes = u64::from(n_repeat) * (20 + 2 * u64::from(n_used));
        if nodes > MAX_NODES || head_size % 2 != 0 && kind == raw::SHIM_OPERATION_BLOCK {
            return wrong("the graph would have too many nodes, or head_size is odd");
        }
        Ok(raw::shim_operation {
            kind,
            type_: type_id as raw::ggml_type,
            n_in: n_in.into(),
            n_out: n_out.into(),
            n_expert: n_expert.into(),
            n_used: n_used.into(),
            head_size: head_size.into(),
            n_head: n_head.into(),
            n_head_kv: n_head_kv.into(),
            n_kv: n_kv.into(),
            n_tokens: n_tokens.into(),
            n_repeat: n_repeat.into(),
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
