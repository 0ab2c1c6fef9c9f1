//! Warms a context up. In: a fresh context, and the context for multi-token prediction if there is one. Out: the growth
//! of their buffers, and the free bytes before and after the first computations.
//!
//! **Other numbers of tokens.** llama.cpp reserves its compute buffers for `n_ubatch` tokens and for one token of each
//! sequence. Numbers in between may need more memory (docs/load-contract.md), so further numbers are reserved too
//! ([`reserve`]), at the full length of the context. If each of several sequences has its own cache, the graph of a
//! single sequence cannot be reserved. Instead, such a graph is computed once.
//!
//! A context for embeddings computes the largest batch of whole texts, and one text alone.

use std::time::Instant;

use llama_sys::{Batch, Context, Device, Error};

use super::devices::free;
use super::error::Stage;
use super::options::Verify;
use super::probe::footprints;
use super::progress::{LoadProgress, Progress};
use super::report::WarmUp;
use crate::memory::Footprints;

/// Largest number of tokens for which GPUs leave the work with weights on the host to the CPU (ggml-cuda.cu and others,
/// `offload_op`: GPUs take over from 32 tokens).
const MAX_NOT_OFFLOADED: u32 = 31;

/// Measurements of a warm-up: llama.cpp's allocations, and the free bytes of each GPU. GPUs are in the order of the
/// plan.
#[derive(Debug)]
pub(super) struct WarmedUp {
    pub(super) warm_up: WarmUp,
    /// Allocations before the warm-up.
    pub(super) at_first: Footprints,
    /// Allocations after the reservation and before the first computation.
    pub(super) reserved: Footprints,
    /// Free bytes after the reservation and before the first computation.
    pub(super) loaded: Vec<Option<u64>>,
    /// Allocations after the warm-up.
    pub(super) allocated: Footprints,
    /// Free bytes after the warm-up.
    pub(super) used: Vec<Option<u64>>,
}

/// Reserves buffers, and computes the tokens that `verify` requires. The context is empty afterwards.
///
/// # Errors
///
/// Fails if llama.cpp has no memory or cannot compute, or if the caller cancels the load.
pub(super) fn warm_up(
    context: &mut Context,
    mut heads: Option<&mut Context>,
    devices: &[Device],
    verify: Verify,
    progress: &Progress,
) -> Result<WarmedUp, Error> {
    let started = Instant::now();
    let at_first = allocated(context, heads.as_deref(), devices);
    let skipped = skipped(context, devices, verify);
    reserve(context, verify)?;
    if let Some(heads) = &mut heads {
        reserve(heads, verify)?;
    }
    let reserved = allocated(context, heads.as_deref(), devices);
    let loaded = free(devices);
    let before = context.compute_buffers();
    let mut run = Run { context, progress, batch: Batch::default(), tokens: 0, last_position: 0 };
    if skipped.is_none() {
        match verify {
            // A text to embed is a single batch.
            Verify::Full if !run.context.embeds() => run.whole_context()?,
            _ => run.largest_batch()?,
        }
        if run.context.n_seq_max() > 1 {
            run.one_sequence()?;
        }
        run.forget()?;
        if let Some(heads) = &mut heads {
            predict(heads)?;
        }
    }
    let grown = run.context.compute_buffers().since(&before);
    let warm_up = WarmUp {
        verify,
        tokens: run.tokens,
        last_position: run.last_position,
        buffer_growth: grown.bytes,
        reallocations: grown.reallocations(),
        skipped: skipped.map(str::to_owned),
        time: started.elapsed(),
    };
    let (allocated, used) = (allocated(context, heads.as_deref(), devices), free(devices));
    Ok(WarmedUp { warm_up, at_first, reserved, loaded, allocated, used })
}

/// If GPUs compute, reserves compute buffers for more numbers of tokens than llama.cpp itself does. These are a half, a
/// quarter and an eighth of a batch, each of these three numbers minus one, and the largest number of tokens that GPUs
/// leave to the CPU. One is subtracted because a power of two is often also a width of the model; its graph can then
/// reuse memory that the graphs of other numbers cannot. With [`Verify::Full`], reserves buffers for all numbers. If
/// the context has rows of pictures or sounds, a whole batch is reserved again, because a change of adapters loses the
/// room for as many rows.
///
/// llama.cpp rounds each number up to a multiple of the sequences (llama-context.cpp, `graph_reserve`). So with two
/// sequences, [`MAX_NOT_OFFLOADED`] tokens are reserved as 32, for which GPUs compute; the graph in which the host
/// computes is reserved by [`Verify::Full`] alone, with 30 tokens, and the host's buffers may grow later. Plans do not
/// count that graph, and it takes up to 2 % more of a card than planned (docs/load-contract.md). So the numbers are not
/// rounded down here.
pub(super) fn reserve(context: &mut Context, verify: Verify) -> Result<(), Error> {
    if context.model().devices().is_empty() || !computes(context) {
        return Ok(());
    }
    let n_ubatch = context.n_ubatch();
    let halves = (0..4).map(|half| n_ubatch >> half).flat_map(|half| [half, half.saturating_sub(1)]);
    let mut numbers = match verify {
        Verify::Full => (1..=n_ubatch).rev().collect::<Vec<_>>(),
        Verify::Off | Verify::Quick => halves.chain([MAX_NOT_OFFLOADED]).collect(),
    };
    let most = if context.reserves_rows() { n_ubatch } else { n_ubatch.saturating_sub(1) };
    numbers.retain(|n_tokens| (1..=most).contains(n_tokens));
    numbers.into_iter().try_for_each(|n_tokens| context.reserve(n_tokens))
}

/// llama.cpp's allocations of both contexts; empty if it does not report them.
fn allocated(context: &Context, heads: Option<&Context>, devices: &[Device]) -> Footprints {
    let both = || {
        let mut breakdown = context.memory_breakdown()?;
        if let Some(heads) = heads {
            breakdown.add_context(&heads.memory_breakdown()?);
        }
        Ok::<_, Error>(breakdown)
    };
    both().map(|breakdown| footprints(&breakdown, devices)).unwrap_or_default()
}

/// Computes with the block for multi-token prediction as it will be used later. The first computation has the maximum
/// number of tokens; the second has one token and its prediction. The context is empty afterwards.
fn predict(heads: &mut Context) -> Result<(), Error> {
    let most = heads.n_batch().min(heads.n_ctx_seq() - 1).max(1);
    let n_vocab = heads.model().vocab().n_tokens().max(1);
    let width = heads.model().n_embd_out() as usize;
    let mut hidden = vec![0.0; width * most as usize];
    let mut batch = Batch::with_capacity(most as usize);
    for position in 0..most {
        let token = signed(position.wrapping_mul(31) % n_vocab);
        batch.add(token, signed(position), 0, false);
    }
    heads.decode_heads(&batch, &hidden)?;
    batch.clear();
    batch.add(0, signed(most), 0, true);
    hidden.truncate(width);
    heads.decode_heads(&batch, &hidden)?;
    heads.synchronize()?;
    heads.kv_clear()
}

/// Whether the context can compute: texts to embed, or a next token. Encoders (BERT), encoder-decoders (T5) and
/// diffusion models (LLaDA) have no next token.
fn computes(context: &Context) -> bool {
    let model = context.model();
    let embeds = context.embeds() && !(model.has_encoder() && model.has_decoder());
    embeds || (model.has_decoder() && !model.has_encoder() && !model.is_diffusion() && context.has_memory())
}

fn skipped(context: &Context, devices: &[Device], verify: Verify) -> Option<&'static str> {
    match verify {
        Verify::Off => Some("as requested"),
        _ if !computes(context) => Some("the model does not generate"),
        Verify::Quick if devices.is_empty() => Some("no GPU is used"),
        Verify::Quick | Verify::Full => None,
    }
}

struct Run<'a> {
    context: &'a mut Context,
    progress: &'a Progress,
    batch: Batch,
    tokens: u64,
    last_position: u32,
}

impl Run<'_> {
    /// Computes the maximum number of tokens of one computation, spread over all sequences, and then one more token.
    /// When embedding, each sequence gets one text and no further token.
    fn largest_batch(&mut self) -> Result<(), Error> {
        let (most, length, embeds) = (self.n_tokens(), self.length(), self.context.embeds());
        let each = most.div_ceil(self.sequences()).max(1);
        let each = if embeds { each.min(length) } else { each };
        let n_tokens = each.saturating_mul(self.sequences()).min(most);
        self.decode(&(0..n_tokens).map(|n| (n / each, n % each)).collect::<Vec<_>>())?;
        if embeds {
            return Ok(());
        }
        let is_full = each >= length;
        if is_full {
            self.context.kv_clear()?;
        }
        self.decode(&[(0, if is_full { 0 } else { each })])
    }

    /// If there are several sequences, computes one of them alone. The first computation has the maximum number of
    /// tokens; the second has a number of tokens that GPUs leave to the CPU.
    fn one_sequence(&mut self) -> Result<(), Error> {
        let most = self.n_tokens().min(self.length());
        for n_tokens in [most, most.min(MAX_NOT_OFFLOADED)] {
            self.forget()?;
            self.decode(&(0..n_tokens).map(|position| (0, position)).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Computes all positions of all sequences, and the last position by itself.
    fn whole_context(&mut self) -> Result<(), Error> {
        let sequences = self.sequences();
        let step = (self.context.n_batch() / sequences).max(1);
        let last = self.length() - 1;
        let mut position = 0;
        while position <= last {
            let left = last - position;
            let end = position + step.min(left.max(1));
            let each = |sequence| (position..end).map(move |position| (sequence, position));
            self.decode(&(0..sequences).flat_map(each).collect::<Vec<_>>())?;
            position = end;
        }
        Ok(())
    }

    /// Computes tokens of these sequences at these positions. The last tokens, up to the allowed number, are outputs.
    fn decode(&mut self, tokens: &[(u32, u32)]) -> Result<(), Error> {
        if !self.progress.report(LoadProgress { stage: Stage::WarmUp, done: 1.0 }) {
            return Err(Error::LoadCancelled { path: self.context.model().path().to_owned() });
        }
        let n_vocab = self.context.model().vocab().n_tokens().max(1);
        let total = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let first_output = total.saturating_sub(self.context.n_outputs_max().max(1));
        self.batch.clear();
        for (number, &(sequence, position)) in (0_u32..).zip(tokens) {
            // The tokens differ, so that a router of experts has a choice.
            let token = signed(number.wrapping_mul(31) % n_vocab);
            let is_output = number >= first_output;
            self.batch.add(token, signed(position), signed(sequence), is_output);
            self.last_position = self.last_position.max(position);
        }
        self.context.decode(&self.batch)?;
        self.context.synchronize()?;
        self.tokens = self.tokens.saturating_add(u64::from(total));
        Ok(())
    }

    /// Clears the context. An encoder keeps no state between batches, so nothing is cleared for it.
    fn forget(&mut self) -> Result<(), Error> {
        if self.context.has_memory() {
            self.context.kv_clear()?;
        }
        Ok(())
    }

    fn sequences(&self) -> u32 {
        self.context.n_seq_max().max(1)
    }

    /// Number of tokens in the largest computation.
    fn n_tokens(&self) -> u32 {
        let context = &self.context;
        context.n_ubatch().min(context.n_batch()).min(context.n_ctx()).max(1)
    }

    /// Number of positions per sequence when all are equally long. When embedding, the length of the longest text.
    fn length(&self) -> u32 {
        let context = &self.context;
        if context.embeds() {
            return context.longest_text();
        }
        let length = if context.kv_unified() { context.n_ctx() / self.sequences() } else { context.n_ctx_seq() };
        length.max(1)
    }
}

/// Converts to llama.cpp's signed numbers. All numbers here are below 2^31.
fn signed(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
