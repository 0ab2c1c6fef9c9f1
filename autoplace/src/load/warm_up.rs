//! The warm-up: a fresh context flows in, with that of blocks that predict further tokens if there is one; what its
//! buffers grow to, and what is free before and after the first computations, flows out.
//!
//! **What other numbers of tokens need.** llama.cpp reserves its compute buffers for `n_ubatch` tokens and for one
//! token of each sequence. Numbers between them may need more of a device (docs/load-contract.md), and are reserved for
//! too ([`reserve`]), at the full length of the context. A sequence alone, of several with caches of their own, has a
//! graph that cannot be reserved; it is computed once.
//!
//! A context for embeddings computes whole texts, as many as it may hold at once, and one alone.

use std::time::Instant;

use llama_sys::{Batch, Context, Device, Error};

use super::devices::free;
use super::probe::footprints;
use super::progress::Progress;
use super::recipe::Verify;
use super::report::WarmUp;
use crate::memory::Footprints;

/// The most tokens that GPUs leave to the CPU where the weights are the host's (ggml-cuda.cu and others,
/// `offload_op`: from 32 on).
const MOST_NOT_OFFLOADED: u32 = 31;

/// The measurements of a warm-up: what llama.cpp said it had allocated, and the bytes that were free of each GPU. GPUs
/// are in the order of the plan.
#[derive(Debug)]
pub(super) struct WarmedUp {
    pub(super) warm_up: WarmUp,
    /// Allocated before.
    pub(super) at_first: Footprints,
    /// The same when everything was reserved, and nothing computed yet.
    pub(super) reserved: Footprints,
    /// Free then.
    pub(super) loaded: Vec<Option<u64>>,
    /// Allocated afterwards.
    pub(super) allocated: Footprints,
    /// Free then.
    pub(super) used: Vec<Option<u64>>,
}

/// Reserves, and computes as far as `verify` says. The context is empty afterwards.
///
/// # Errors
///
/// When llama.cpp has no room or fails to compute, or when the caller cancels.
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
    let mut run = Run { context, progress, batch: Batch::default(), tokens: 0, last_position: 0 };
    if skipped.is_none() {
        match verify {
            // A text that is embedded is one batch.
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
    let warm_up = WarmUp {
        verify,
        tokens: run.tokens,
        last_position: run.last_position,
        skipped: skipped.map(str::to_owned),
        time: started.elapsed(),
    };
    let (allocated, used) = (allocated(context, heads.as_deref(), devices), free(devices));
    Ok(WarmedUp { warm_up, at_first, reserved, loaded, allocated, used })
}

/// Reserves for numbers of tokens for which llama.cpp does not, where GPUs compute: of each half of a batch, down to an
/// eighth, that number and one less, since powers of two are often widths of the model as well and find room that no
/// other number does; and the most that GPUs leave to the CPU. With [`Verify::Full`], all numbers.
pub(super) fn reserve(context: &mut Context, verify: Verify) -> Result<(), Error> {
    if context.model().devices().is_empty() || !computes(context) {
        return Ok(());
    }
    let n_ubatch = context.n_ubatch();
    let halves = (0..4).map(|half| n_ubatch >> half).flat_map(|half| [half, half.saturating_sub(1)]);
    let mut numbers = match verify {
        Verify::Full => (1..=n_ubatch).rev().collect::<Vec<_>>(),
        Verify::Off | Verify::Quick => halves.chain([MOST_NOT_OFFLOADED]).collect(),
    };
    numbers.retain(|n_tokens| (1..n_ubatch).contains(n_tokens));
    numbers.into_iter().try_for_each(|n_tokens| context.reserve(n_tokens))
}

/// What llama.cpp says it has allocated, for both contexts; of no GPU where it does not say.
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

/// Computes with the blocks that predict further tokens as they are computed with later: as many tokens of a text as
/// one computation takes, and one with what it predicts. The context is empty afterwards.
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

/// Whether there is something to compute: texts to embed, or a next token, which encoders (BERT), encoder-decoders (T5)
/// and diffusion models (LLaDA) do not have.
fn computes(context: &Context) -> bool {
    let model = context.model();
    let embeds = context.embeds() && !(model.has_encoder() && model.has_decoder());
    embeds || (model.has_decoder() && !model.has_encoder() && !model.is_diffusion() && context.has_memory())
}

fn skipped(context: &Context, devices: &[Device], verify: Verify) -> Option<&'static str> {
    match verify {
        Verify::Off => Some("as was asked"),
        _ if !computes(context) => Some("the model does not generate"),
        Verify::Quick if devices.is_empty() => Some("no GPU is used that could be measured"),
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
    /// As many tokens as one computation takes, over all sequences, and one token after them; none after texts to
    /// embed, which each sequence has one of.
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

    /// One of several sequences alone: as many tokens as one computation takes, and fewer than a GPU takes
    /// over from the host.
    fn one_sequence(&mut self) -> Result<(), Error> {
        let most = self.n_tokens().min(self.length());
        for n_tokens in [most, most.min(MOST_NOT_OFFLOADED)] {
            self.forget()?;
            self.decode(&(0..n_tokens).map(|position| (0, position)).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// All positions of all sequences, the last one by itself.
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

    /// Computes tokens of these sequences at these positions: as many of the last ones as may be are outputs.
    fn decode(&mut self, tokens: &[(u32, u32)]) -> Result<(), Error> {
        if !self.progress.report(1.0) {
            return Err(Error::LoadCancelled { path: self.context.model().path().to_owned() });
        }
        let n_vocab = self.context.model().vocab().n_tokens().max(1);
        let total = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let first_output = total.saturating_sub(self.context.n_outputs_max().max(1));
        self.batch.clear();
        for (number, &(sequence, position)) in (0_u32..).zip(tokens) {
            // Tokens that differ, so that a router of experts has something to choose.
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

    /// Encoders keep nothing from batch to batch.
    fn forget(&mut self) -> Result<(), Error> {
        if self.context.has_memory() {
            self.context.kv_clear()?;
        }
        Ok(())
    }

    fn sequences(&self) -> u32 {
        self.context.n_seq_max().max(1)
    }

    /// Tokens of the largest computation.
    fn n_tokens(&self) -> u32 {
        let context = &self.context;
        context.n_ubatch().min(context.n_batch()).min(context.n_ctx()).max(1)
    }

    /// Positions that each sequence has when all are as long; of texts to embed, which come and go, of
    /// one that has all.
    fn length(&self) -> u32 {
        let context = &self.context;
        if context.embeds() {
            return context.longest_text();
        }
        let length = if context.kv_unified() { context.n_ctx() / self.sequences() } else { context.n_ctx_seq() };
        length.max(1)
    }
}

/// llama.cpp's numbers are signed; none of these is above 2^31.
fn signed(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
