//! How a model is to be loaded.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::adapters::Adapter;
use super::lease::{Folder, Leases};
use super::progress::Progress;
use super::recipe::{OnDifference, Recipe, Verify};
use super::{Error, Model, remote};
use crate::machine::Machine;
use crate::memory::companion::Role;
use crate::memory::{FlashAttention, Headroom, KvType, Pooling, Rope};
use crate::plan::{self, GpuLayers, Plan, Request, SavedPlan};
use crate::worker::Isolation;

/// A load being described: finish it with [`load`](Self::load), or look first with [`plan`](Self::plan).
#[derive(Debug)]
#[must_use = "nothing is loaded until `load` is called"]
pub struct ModelBuilder {
    recipe: Recipe,
    progress: Progress,
    isolation: Isolation,
    /// Where the file comes from, if it is a hub's.
    #[cfg(feature = "hub")]
    pub(super) source: super::hub::Source,
    /// The method that was called after settings that it replaces.
    conflict: Option<&'static str>,
}

impl ModelBuilder {
    pub(super) fn new(path: &Path) -> Self {
        let recipe = Recipe::of(path);
        Self {
            recipe,
            progress: Progress::default(),
            isolation: Isolation::None,
            #[cfg(feature = "hub")]
            source: Default::default(),
            conflict: None,
        }
    }

    /// Sets the whole request at once. Call it first: after one of the other methods, whose setting
    /// it would replace, the load is [`Error::Conflict`].
    pub fn request(mut self, request: Request) -> Self {
        if self.recipe.request != Request::new() {
            self.conflict = Some("request");
        }
        self.recipe.request = request;
        self
    }

    /// Embeds texts instead of generating: see [`Request::embeddings`] and [`Model::embedder`](super::Model::embedder).
    pub fn embeddings(mut self, pooling: Pooling) -> Self {
        self.recipe.request = self.recipe.request.embeddings(pooling);
        self
    }

    /// Tokens that are computed at once, with [`n_batch`](Self::n_batch) at least as large. Default: 512, and more
    /// where prompts gain.
    pub fn n_ubatch(mut self, tokens: u32) -> Self {
        let n_batch = self.recipe.request.params.n_batch.max(tokens);
        self.recipe.request = self.recipe.request.n_ubatch(tokens).n_batch(n_batch);
        self
    }

    /// How positions are scaled, for a context longer than the model was trained on: `|rope| rope.freq_scale =
    /// Some(0.25)`. Default: as the model says.
    pub fn rope(mut self, set: impl FnOnce(&mut Rope)) -> Self {
        set(&mut self.recipe.request.params.rope);
        self
    }

    setters! {
        /// Tokens of context. Default: [`Context::Default`](plan::Context::Default), 4096 to 32,768 as they cost no
        /// layer, and no more than the model was trained on.
        n_ctx(tokens: u32) recipe.request.context = plan::Context::Tokens(tokens);
        /// This many sequences at once, of this many tokens each: as many requests as an
        /// [`Engine`](crate::generate::Engine) computes at once. Default: one of the whole context.
        parallel(sequences: u32, tokens_each: u32)
            recipe.request.params.n_seq_max = sequences,
            recipe.request.context = plan::Context::Tokens(sequences.saturating_mul(tokens_each));
        /// How many tokens of context there are, or how many there may be: as many as the model was trained on, say, or
        /// as cost no layer. For a number there is [`n_ctx`](Self::n_ctx).
        context(context: plan::Context) recipe.request.context = context;
        /// The prompt and reply that are to take the least time. Default: [`plan::Workload::typical`] of the context.
        workload(workload: plan::Workload) recipe.request.workload = Some(workload);
        /// Type of the keys in the cache. Default: F16.
        type_k(keys: KvType) recipe.request.params.type_k = keys;
        /// Type of the values in the cache. Default: F16.
        type_v(values: KvType) recipe.request.params.type_v = values;
        /// Whether the types of keys and values are those, or chosen: [`KvCache::Auto`](plan::KvCache::Auto) takes
        /// `Q8_0` where the speed that it buys is worth the quality, and the plan's notes say what was bought. Default:
        /// as given.
        kv_cache(types: plan::KvCache) recipe.request.kv_cache = types;
        /// Whether attention is fused. Default: where every device that holds a layer can.
        flash_attn(flash_attn: FlashAttention) recipe.request.params.flash_attn = flash_attn;
        /// Whether all sequences share one cache, instead of a part of it each. Default: no.
        kv_unified(unified: bool) recipe.request.params.kv_unified = unified;
        /// Whether keys and values lie with their layers; `false` leaves all of them on the host. Default: yes.
        offload_kqv(offload: bool) recipe.request.params.offload_kqv = offload;
        /// Whether a GPU computes long prompts with the weights that the host keeps. Default: yes.
        op_offload(offload: bool) recipe.request.params.op_offload = offload;
        /// Whether the file is mapped, where every device can, or read. Default: mapped. Truncating a mapped file ends
        /// the process that it is mapped in: with [`isolation`](Self::isolation), a worker.
        mmap(map: bool) recipe.request.params.mmap = map;
        /// Whether the CPU may rearrange weights for its instruction set. Default: yes.
        repack(repack: bool) recipe.request.params.repack = repack;
        /// Whether layers with a sliding window keep the whole context. Default: no, as in llama.cpp's programs: a
        /// window takes a fraction of the bytes, and a text that goes back further than it reaches is computed again.
        swa_full(full: bool) recipe.request.params.swa_full = full;
        /// Tokens that one call of llama.cpp may submit. Default: 2048.
        n_batch(tokens: u32) recipe.request.params.n_batch = tokens;
        /// Loads a small model of the same vocabulary beside this one, that
        /// [drafts](crate::generate::Speculation::DraftModel) for it. It is planned, placed and released with the
        /// model. Where no [`draft_max`](Self::draft_max) is stated, it is 8.
        draft(path: impl Into<PathBuf>) recipe.draft = Some(path.into());
        /// Loads the model's own block that predicts further tokens, with a context for it, so that it
        /// [drafts](crate::generate::Speculation::Mtp) for the model. Where no [`draft_max`](Self::draft_max) is
        /// stated, it is 3. Default: no. Prompts take about one layer's time more.
        ///
        /// A file without a block that llama.cpp can use is refused ([`Error::Mtp`]), and so is a context that embeds
        /// or has several sequences of recurrent states ([`plan::Error::Mtp`]).
        mtp(load: bool) recipe.mtp = load;
        /// Tokens of each sequence that may be [drafted](crate::generate::Generate::speculate) at once. Default: none.
        draft_max(tokens: u32) recipe.request.draft_max = tokens;
        /// Whether a model may be loaded that is larger than all memory: see
        /// [`Request::allow_paging`](crate::plan::Request::allow_paging). Default: no.
        allow_paging(allow: bool) recipe.request.allow_paging = allow;
        /// What stays free on a GPU.
        headroom(headroom: Headroom) recipe.request.headroom = headroom;
        /// Layers on GPUs, the output layer counted first: at most so many where this is a number.
        /// [`GpuLayers::Exactly`] and [`GpuLayers::All`] are an error where they do not fit. Default: as many as are
        /// safe.
        n_gpu_layers(layers: impl Into<GpuLayers>) recipe.request.gpu_layers = layers.into();
        /// Threads for what the CPU computes. Default: one per physical core that this process may use; to generate,
        /// four at most where all layers are on GPUs, and fewer where they turn out to be faster, as while other
        /// programs hold them up.
        n_threads(threads: u32) recipe.threads = Some(threads);
        /// Threads for prompts. Default: as many as [`n_threads`](Self::n_threads) says, or one per physical core.
        n_threads_batch(threads: u32) recipe.threads_batch = Some(threads);
        /// Bytes of host memory that checkpoints may take. Default: 1 GiB; 0 keeps none.
        ///
        /// For a model with sliding windows (`swa_full` off) or a recurrent state, the end of each prompt is saved, so
        /// that a conversation whose earlier turns are rewritten goes on from there. The least recently used are
        /// evicted first. No plan counts them: one is taken only if the host has this much free at that moment, beyond
        /// the margin that plans leave.
        checkpoints(bytes: u64) recipe.checkpoints = bytes;
        /// Adds a LoRA adapter, named after its file (`style` for `style.gguf`, `style-2` for a second one of the
        /// name). `scale` counts for texts that ask for [no adapters of their own](crate::generate::Generate::lora):
        /// at 0.0 they are computed without it. Can be called for several.
        lora(path: impl Into<PathBuf>, scale: f32) recipe.adapters.add(path.into(), scale);
        /// Adds a LoRA adapter under a name of its own.
        lora_named(name: impl Into<String>, path: impl Into<PathBuf>, scale: f32)
            recipe.adapters.lora.push(Adapter { name: name.into(), path: path.into(), scale });
        /// Adds a control vector, times `scale`, to the outputs of the model's layers, in all texts. Can be called for
        /// several, whose sum is added.
        control_vector(path: impl Into<PathBuf>, scale: f32)
            recipe.adapters.control_vectors.push((path.into(), scale));
        /// The first and the last layer that control vectors are added to, counted from 0. Layer 0 never has one.
        /// Default: all others.
        control_vector_layers(layers: RangeInclusive<u32>) recipe.adapters.control_layers = Some(layers.into_inner());
        /// Called with the progress of the load from 0.0 to 1.0; returning `false` cancels it. In the warm-up it is
        /// called with 1.0 before each batch; a draft and a further attempt begin at 0.0 again. While another load is
        /// waited for it is called with 0.0.
        progress(callback: impl FnMut(f32) -> bool + Send + 'static) progress = Progress::new(callback);
        /// How far the load computes before it counts as done. Default: [`Verify::Quick`].
        verify(verify: Verify) recipe.verify = verify;
        /// What to do where the load took more of a GPU than its plan left for it. Default: [`OnDifference::BackOff`].
        on_difference(action: OnDifference) recipe.on_difference = action;
        /// How often to try, each time with a plan for what is free by then, when memory runs short. Default: 4; 1
        /// never plans again, and 0 counts as 1.
        attempts(n: u32) recipe.attempts = n.max(1);
        /// Keeps what is learned of GPUs in this folder instead of the user's cache folder, of
        /// [simulated](llama_sys::sim) ones too: see
        /// [`Detector::cache_folder`](crate::machine::Detector::cache_folder).
        headroom_folder(folder: impl Into<PathBuf>) recipe.learn = Folder::At(folder.into());
        /// Keeps nothing of what is learned of GPUs.
        without_learning() recipe.learn = Folder::Nowhere;
        /// Where loads of this user see which of them uses which GPU, and how long this one waits. Default:
        /// [`Leases::user`].
        leases(leases: Leases) recipe.leases = leases;
        /// Places the model on this machine instead of the one that is detected: GPUs left out are not used, and free
        /// bytes are believed; from the second attempt on, no more than a GPU reports. Its GPUs must be devices of this
        /// process.
        machine(machine: Machine) recipe.machine = Some(machine);
        /// Also uses the devices of another machine, whose rpc-server (`autoplace-rpc-server`, or llama.cpp's of the
        /// same version) listens at `endpoint`, `host:port`. May be called again for further machines. Needs the
        /// feature `rpc`.
        ///
        /// The link and the devices are measured when the load plans, and layers go there only where that is faster;
        /// their weights are carried over the link at each load. llama.cpp ends the process whose connection is lost,
        /// so the model runs in a worker: where no [`isolation`](Self::isolation) is asked for, this program's own
        /// ([`WorkerProcess::own_executable`](crate::WorkerProcess::own_executable)). After a lost connection that
        /// worker has [died](crate::worker::Error::Died); with [`OnDeath::Resume`](crate::worker::OnDeath) the model is
        /// placed again without the server that is gone, and the text goes on.
        rpc(endpoint: impl Into<String>) recipe.servers.endpoints.push(endpoint.into());
        /// Lets [`rpc`](Self::rpc) reach other machines than this one. The protocol has neither authentication nor
        /// encryption: whoever is on the network reads the texts, and may run what he likes on the servers. Through a
        /// tunnel (docs/rpc.md) a server is on this machine, and this is not needed.
        rpc_trusted_network(trusted: bool) recipe.servers.trusted = trusted;
        /// Follows a saved plan exactly, instead of making one; [`SavedPlan::read`] reads one that `autoplace plan
        /// --save` wrote. Before the load it is checked against the model, against the machine as it is, and against
        /// what llama.cpp says that it takes. Together with settings of a plan (context, layers, headroom), and with
        /// [`draft`](Self::draft) or [`mtp`](Self::mtp) where the plan has none, it is [`Error::Conflict`].
        follow(saved: SavedPlan) recipe.saved = Some(Box::new(saved)), recipe.replan = false;
        /// Follows a saved plan where it still fits. Where the machine has changed since, or the plan turns out not to
        /// fit, what was asked then is planned again, and the new plan's notes say what has changed. A plan that leaves
        /// room for an mmproj is refused all the same: its file is not known here.
        follow_or_replan(saved: SavedPlan) recipe.saved = Some(Box::new(saved)), recipe.replan = true;
        /// Where the model runs. Default: in this process.
        ///
        /// In a [worker](Isolation::Process) it generates as it does here, and what ends llama.cpp there is an error
        /// here. What needs the model underneath ([`Model::native`](super::Model::native), samplers and drafters of the
        /// application's own) is not available then. [`plan`](Self::plan) asks llama.cpp in this process all the same.
        isolation(isolation: Isolation) isolation = isolation;
    }

    /// The plan that [`load`](Self::load) would follow, confirmed by llama.cpp's own arithmetic. Allocates nothing; a
    /// hub's model is fetched first, if it may be.
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] and [`Error::Profile`] for a file that is no model, [`Error::Plan`] when it fits nowhere or was
    /// asked for what cannot be; [`Error::SavedPlan`] for a saved plan that cannot be read, is of another model, or
    /// does not fit the machine as it is now; for a hub's model [`Error::NotFetched`], `Error::Hub`, and without the
    /// feature `hub` [`Error::NoHub`].
    pub fn plan(&self) -> Result<Plan, Error> {
        let recipe = self.recipe()?;
        match recipe.servers.isolation(self.isolation.clone())? {
            Isolation::Process(process) if !recipe.servers.endpoints.is_empty() => remote::plan_in(&process, recipe),
            _ => recipe.only_plan(),
        }
    }

    /// Plans, loads, warms up, and compares what was taken with the plan.
    ///
    /// When memory runs short at any stage, everything is released and the model is planned again for what is free
    /// then, up to [`attempts`](Self::attempts) times; the [report](Model::report) lists them all. A saved plan is
    /// tried once (with [`follow_or_replan`](Self::follow_or_replan) it is the first attempt), and
    /// [`GpuLayers::Exactly`] is never lowered.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan). When memory runs short, [`Error::AllAttempts`] lists what was tried; if only one
    /// attempt was allowed, it is that attempt's own error: [`Error::OutOfMemory`] when a GPU's memory was taken
    /// since the plan was made, [`Error::Difference`] when the load took more than its plan left for it.
    /// [`Error::Native`] when llama.cpp fails all the same: the file's data is damaged, or the progress callback
    /// cancelled; [`Error::Worker`] when the worker cannot be started, or dies.
    pub fn load(self) -> Result<Model, Error> {
        let recipe = self.recipe()?;
        match recipe.servers.isolation(self.isolation)? {
            Isolation::None => recipe.load(self.progress),
            Isolation::Process(process) => recipe.load_in(process, &self.progress),
        }
    }

    /// How to load, with the file that a hub's name stands for; a saved plan also says what is asked for later.
    fn recipe(&self) -> Result<Recipe, Error> {
        let mut recipe = self.recipe.clone();
        let is_late = |plan: &Plan| {
            recipe.request != Request::new()
                || (recipe.mtp && !plan.context.mtp)
                || (recipe.draft.is_some() && !plan.companions.iter().any(|one| one.role == Role::Draft))
        };
        let is_late = recipe.saved.as_ref().is_some_and(|saved| is_late(&saved.plan));
        if let Some(late) = self.conflict.or(is_late.then_some("follow")) {
            return Err(Error::Conflict { late: late.to_owned() });
        }
        if let Some(saved) = &recipe.saved {
            saved.check()?;
            (recipe.request, recipe.mtp) = (saved.request.clone(), saved.plan.context.mtp);
        }
        #[cfg(feature = "hub")]
        self.source.place(&mut recipe, &self.isolation)?;
        if let Some(name) = recipe.hub_name() {
            return Err(Error::NoHub { name: name.to_owned() });
        }
        Ok(recipe)
    }
}
