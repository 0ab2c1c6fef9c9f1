//! The options of a load.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::adapters::Adapter;
use super::leases::{Folder, Leases};
use super::options::{LoadOptions, OnDifference, Verify};
use super::progress::{LoadProgress, Progress};
use super::{Error, Model, remote};
use crate::gguf::Header;
use crate::machine::Machine;
use crate::memory::companion::{CompanionRole, DraftOptions};
use crate::memory::{Companion, FlashAttention, Headroom, KvType, Pooling, Rope};
use crate::plan::{self, Advice, GpuLayers, Plan, Request, SavedPlan};
use crate::store::PromptStore;
use crate::worker::Isolation;

/// The options of a load. [`load`](Self::load) carries it out; [`plan`](Self::plan) only plans.
#[derive(Debug)]
#[must_use = "nothing is loaded until `load` is called"]
pub struct ModelBuilder {
    options: LoadOptions,
    progress: Progress,
    isolation: Isolation,
    /// For a model of a hub: the hub from which the file comes.
    #[cfg(feature = "hub")]
    pub(super) source: super::hub::Source,
    /// The name of a method that was called too late, so that it would have replaced earlier settings.
    conflict: Option<&'static str>,
}

impl Model {
    /// Loads a GGUF file (the first part of a split one) with as many layers on the GPU as are safe. The load makes a
    /// plan, reads the model, warms it up, and compares the memory that the model took with the plan. See
    /// [`ModelBuilder::load`]. With the feature `hub`, the path can also be a name of the form
    /// `hf:OWNER/NAME[:QUANT][@REVISION]`, if the model is in the cache.
    ///
    /// # Errors
    ///
    /// The errors of [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).load()
    }

    /// Configures a load: context, KV type, headroom, layers, progress.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(path.as_ref())
    }
}

impl ModelBuilder {
    pub(super) fn new(path: &Path) -> Self {
        let options = LoadOptions::new(path);
        Self {
            options,
            progress: Progress::default(),
            isolation: Isolation::None,
            #[cfg(feature = "hub")]
            source: Default::default(),
            conflict: None,
        }
    }

    /// Sets the whole request at once. Call this method first: if another setter was called before, the load fails with
    /// [`Error::Conflict`], because this method would replace the other setting.
    pub fn request(mut self, request: Request) -> Self {
        if self.options.request != Request::new() {
            self.conflict = Some("request");
        }
        self.options.request = request;
        self
    }

    /// Loads the model to embed texts instead of generating: see [`Request::embeddings`] and
    /// [`Model::embedder`](super::Model::embedder).
    pub fn embeddings(mut self, pooling: Pooling) -> Self {
        self.options.request = self.options.request.embeddings(pooling);
        self
    }

    /// Sets the number of tokens that one graph computes. If [`n_batch`](Self::n_batch) is smaller, it is raised to
    /// this number. Default: 512, or more if that makes prompts faster.
    #[doc(alias = "ubatch_size")]
    pub fn n_ubatch(mut self, tokens: u32) -> Self {
        let n_batch = self.options.request.params.n_batch.max(tokens);
        self.options.request = self.options.request.n_ubatch(tokens).n_batch(n_batch);
        self
    }

    /// Sets the scaling of positions, for a context longer than the model's training context: `|rope| rope.freq_scale =
    /// Some(0.25)`. Default: the scaling that the model's file states.
    pub fn rope(mut self, set: impl FnOnce(&mut Rope)) -> Self {
        set(&mut self.options.request.params.rope);
        self
    }

    /// Sets the context length in tokens. Default: [`Context::Default`](plan::Context::Default). This is 4096 for each
    /// sequence, and up to 32,768 for all sequences together, if no layer has to leave the GPUs because of the
    /// additional tokens, and if these take at most half of each device's remaining budget. No sequence has more than
    /// the model's training context.
    #[doc(alias = "ctx_size")]
    #[doc(alias = "num_ctx")]
    #[doc(alias = "context_length")]
    #[doc(alias = "max_seq_len")]
    pub fn n_ctx(mut self, tokens: u32) -> Self {
        self.options.request.context = plan::Context::Tokens(tokens);
        self
    }

    /// Sets the number of sequences that run at once, and the number of tokens in each sequence. An
    /// [`Engine`](crate::generate::Engine) computes one request per sequence. Default: one sequence with the whole
    /// context.
    #[doc(alias = "n_parallel")]
    #[doc(alias = "n_seq_max")]
    #[doc(alias = "num_parallel")]
    pub fn parallel(mut self, sequences: u32, tokens_each: u32) -> Self {
        self.options.request.params.n_seq_max = sequences;
        self.options.request.context = plan::Context::Tokens(sequences.saturating_mul(tokens_each));
        self
    }

    /// Sets a policy for the tokens of context, such as the model's training context or the longest context for which
    /// no layer has to leave the GPUs. [`n_ctx`](Self::n_ctx) sets a number.
    pub fn context(mut self, context: plan::Context) -> Self {
        self.options.request.context = context;
        self
    }

    /// Sets the prompt and reply lengths for which the plan is optimised. Default: the [typical
    /// workload](plan::Workload::typical) for the context.
    pub fn workload(mut self, workload: plan::Workload) -> Self {
        self.options.request.workload = Some(workload);
        self
    }

    /// Sets the depths, in live tokens, for which the placement is made. Default: [`Depth::Follow`](plan::Depth). If
    /// one placement is faster up to some depth within the context, and another one is faster beyond it, the model
    /// moves from one to the other. A move comes between two tokens.
    pub fn depth(mut self, depth: plan::Depth) -> Self {
        self.options.request.depth = depth;
        self
    }

    /// Sets the type of the keys in the cache. Default: F16.
    #[doc(alias = "cache_type")]
    #[doc(alias = "cache_type_k")]
    #[doc(alias = "kv_cache_type")]
    #[doc(alias = "cache_quantization")]
    pub fn type_k(mut self, keys: KvType) -> Self {
        self.options.request.params.type_k = keys;
        self
    }

    /// Sets the type of the values in the cache. Default: F16.
    #[doc(alias = "cache_type")]
    #[doc(alias = "cache_type_v")]
    pub fn type_v(mut self, values: KvType) -> Self {
        self.options.request.params.type_v = values;
        self
    }

    /// Sets whether the types of keys and values are fixed or chosen. [`KvCache::Auto`](plan::KvCache::Auto) chooses
    /// `Q8_0` if the gain in speed is worth the loss in quality. The plan's notes report the gain. Default: fixed.
    pub fn kv_cache(mut self, types: plan::KvCache) -> Self {
        self.options.request.kv_cache = types;
        self
    }

    /// Sets where keys and values may lie. [`KvPlace::Auto`](plan::KvPlace::Auto) moves the keys and values of all
    /// layers to the host if that is faster. Default: where [`offload_kqv`](Self::offload_kqv) puts them.
    pub fn kv_place(mut self, place: plan::KvPlace) -> Self {
        self.options.request.kv_place = place;
        self
    }

    /// Sets whether the GPUs cache recently used experts, if the experts stay on the host.
    /// [`MoeCache::Bytes`](plan::MoeCache::Bytes) states the size of the cache. Default: a cache of the best size if it
    /// makes the workload at least a tenth faster, otherwise none.
    #[doc(alias = "moe_cache_size")]
    pub fn moe_cache(mut self, cache: plan::MoeCache) -> Self {
        self.options.request.moe_cache = cache;
        self
    }

    /// Sets the minimum number of tokens per computation. A plan goes below 512 tokens (or below
    /// [`n_ubatch`](Self::n_ubatch)) if fewer tokens are faster, or if the model fits only with fewer. Default: 512, or
    /// `n_ubatch`.
    pub fn min_ubatch(mut self, tokens: u32) -> Self {
        self.options.request.min_ubatch = Some(tokens);
        self
    }

    /// Sets whether attention is fused. Default: fused if every device that has a layer supports it.
    #[doc(alias = "flash_attention")]
    pub fn flash_attn(mut self, flash_attn: FlashAttention) -> Self {
        self.options.request.params.flash_attn = flash_attn;
        self
    }

    /// Sets whether all sequences share one cache instead of each having its own part. Default: no.
    pub fn kv_unified(mut self, unified: bool) -> Self {
        self.options.request.params.kv_unified = unified;
        self
    }

    /// Sets whether keys and values lie on the devices of their layers; `false` keeps all of them on the host. Default:
    /// yes.
    pub fn offload_kqv(mut self, offload: bool) -> Self {
        self.options.request.params.offload_kqv = offload;
        self
    }

    /// Sets whether a GPU computes with the host's weights for long prompts. Default: yes.
    pub fn op_offload(mut self, offload: bool) -> Self {
        self.options.request.params.op_offload = offload;
        self
    }

    /// Sets whether the file is mapped or read. Default: mapped if every device supports it. If a mapped file is
    /// truncated, the operating system ends the process that maps it. With [`isolation`](Self::isolation), only a
    /// worker maps the file.
    #[doc(alias = "use_mmap")]
    #[doc(alias = "no_mmap")]
    pub fn mmap(mut self, map: bool) -> Self {
        self.options.request.params.mmap = map;
        self
    }

    /// Sets whether the CPU may rearrange weights for its instruction set. Default: yes.
    pub fn repack(mut self, repack: bool) -> Self {
        self.options.request.params.repack = repack;
        self
    }

    /// Sets whether layers with a sliding window keep the whole context. Default: no, as in llama.cpp's programs. A
    /// cache that holds only the window takes a fraction of the bytes. But if a text changes at a place that the window
    /// no longer holds (an edited message), its tokens are computed again from the last [checkpoint](Self::checkpoints)
    /// before that place.
    pub fn swa_full(mut self, full: bool) -> Self {
        self.options.request.params.swa_full = full;
        self
    }

    /// Sets the maximum number of tokens per call of llama.cpp. Default: 2048.
    #[doc(alias = "batch_size")]
    #[doc(alias = "num_batch")]
    pub fn n_batch(mut self, tokens: u32) -> Self {
        self.options.request.params.n_batch = tokens;
        self
    }

    /// Loads a small draft model of the same vocabulary together with this one
    /// ([`Speculation::DraftModel`](crate::generate::Speculation::DraftModel)). The draft is planned, placed and
    /// released together with the model. [`draft_max`](Self::draft_max) then defaults to 8.
    pub fn draft(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.draft = Some(path.into());
        self
    }

    /// Sets all options of the draft at once.
    pub fn draft_options(mut self, options: DraftOptions) -> Self {
        self.options.draft_options = options;
        self
    }

    /// Sets the types of the draft's keys and values. Default: F16, whatever types the model's own cache has.
    pub fn draft_kv_types(mut self, keys: KvType, values: KvType) -> Self {
        self.options.draft_options.type_k = Some(keys);
        self.options.draft_options.type_v = Some(values);
        self
    }

    /// Sets the number of the draft's layers on its GPU, counted from the output layer on; 0 keeps the draft on the
    /// host. A load fails if no GPU has room for these layers. Default: all layers, or none if no GPU has room for all.
    pub fn draft_n_gpu_layers(mut self, layers: u32) -> Self {
        self.options.draft_options.n_gpu_layers = Some(layers);
        self
    }

    /// Sets the device of the draft: the name of a GPU in ggml (`CUDA1`) or its display name, or
    /// [`DraftOptions::HOST`](crate::memory::companion::DraftOptions::HOST). Default: the device on which the draft
    /// slows the model down least.
    pub fn draft_device(mut self, device: impl Into<String>) -> Self {
        self.options.draft_options.device = Some(device.into());
        self
    }

    /// Loads the model's own block for multi-token prediction, with a context of its own
    /// ([`Speculation::Mtp`](crate::generate::Speculation::Mtp)). [`draft_max`](Self::draft_max) then defaults to
    /// 3. Default: no. The block makes prompts slower, about as much as one more layer would.
    ///
    /// The load fails with [`Error::Mtp`] if the file has no usable block. It fails with [`plan::Error::Mtp`] if the
    /// context is for embeddings, or if it has several sequences of recurrent states.
    pub fn mtp(mut self, load: bool) -> Self {
        self.options.mtp = load;
        self
    }

    /// Sets the maximum number of tokens per [draft](crate::generate::GenerateRequest::speculate) and sequence.
    /// Default: no drafts.
    pub fn draft_max(mut self, tokens: u32) -> Self {
        self.options.request.draft_max = tokens;
        self
    }

    /// Loads a projector (mmproj) together with the model, so that prompts and messages may contain images or sound:
    /// `Part::image` and `Part::audio` with the feature `media`. The projector's memory is part of the plan, which
    /// places it on one GPU or on the host. [`mmproj_beside`](super::mmproj_beside) finds the file in the model's
    /// folder.
    ///
    /// With the feature `hub`, the path may be `hf:OWNER/NAME[:QUANT][@REVISION]`. This names the projector of that
    /// repository that suits the model best (`hub::choose_projector`). The file is fetched if
    /// [`fetch`](crate::ModelBuilder#method.fetch) allows it.
    ///
    /// If each row of an image attends to all other rows of the image (as in Gemma 3), `n_ubatch` is raised to the
    /// number of rows of the largest image.
    #[doc(alias = "clip_model_path")]
    #[doc(alias = "multimodal")]
    pub fn mmproj(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.mmproj = Some(path.into());
        self
    }

    /// Sets the maximum number of tokens per image, if the projector takes images of any size. Larger images are scaled
    /// down. Default: the limit in the projector's file; 4096 for Youtu-VL. The memory that the plan reserves for the
    /// projector depends on this limit.
    pub fn image_max_tokens(mut self, tokens: u32) -> Self {
        self.options.image_max_tokens = (tokens > 0).then_some(tokens);
        self
    }

    /// Sets the maximum bytes of host memory for encoded images and sounds. If a later text contains the same image or
    /// sound, it need not be encoded again. Default: 256 MiB, or less if the plan leaves less.
    pub fn media_cache(mut self, bytes: u64) -> Self {
        self.options.media_cache = bytes;
        self
    }

    /// Sets whether a model larger than all memory may be loaded: see
    /// [`Request::allow_paging`](crate::plan::Request::allow_paging). Default: no.
    pub fn allow_paging(mut self, allow: bool) -> Self {
        self.options.request.allow_paging = allow;
        self
    }

    /// Sets the memory that stays free on each GPU.
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.options.request.headroom = headroom;
        self
    }

    /// Sets the number of layers on GPUs, counted from the output layer on. A plain number is an upper bound.
    /// [`GpuLayers::Exactly`] and [`GpuLayers::All`] fail if they do not fit. Default: all layers that are safe.
    #[doc(alias = "ngl")]
    #[doc(alias = "num_gpu")]
    #[doc(alias = "gpu_layers")]
    pub fn n_gpu_layers(mut self, layers: impl Into<GpuLayers>) -> Self {
        self.options.request.gpu_layers = layers.into();
        self
    }

    /// Sets the threads of the CPU. Default: one per physical core that this process may use. If all layers are on
    /// GPUs, at most four threads generate. Fewer threads generate if this turns out to be faster, for example while
    /// other programs are busy.
    #[doc(alias = "num_thread")]
    #[doc(alias = "threads")]
    pub fn n_threads(mut self, threads: u32) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Sets the threads for prompts. Default: [`n_threads`](Self::n_threads), or one per physical core.
    pub fn n_threads_batch(mut self, threads: u32) -> Self {
        self.options.threads_batch = Some(threads);
        self
    }

    /// Sets the maximum bytes of host memory for checkpoints. Default: 1 GiB; 0 means that no checkpoints are kept.
    ///
    /// For a model with sliding windows (`swa_full` off) or a recurrent state, a checkpoint saves the state near the
    /// end of each prompt, so that a conversation with rewritten earlier turns can continue from that state. The least
    /// recently used checkpoints are evicted first. Plans do not count checkpoints. A checkpoint is saved only if the
    /// host has enough free bytes beyond the plan's margin.
    pub fn checkpoints(mut self, bytes: u64) -> Self {
        self.options.checkpoints = bytes;
        self
    }

    /// Keeps computed prompts and answers in this store. A later text that begins with the same tokens restores their
    /// state from the store. This works after another text has taken over the sequence, and after the model was
    /// unloaded or re-placed. If the store has a folder, it also works after a restart. Several models may share a
    /// store. The worker of a model opens its own store with the same options. Default: no store.
    ///
    /// Plans leave the store's [memory](crate::store::StoreOptions::memory) free on the host.
    pub fn prompt_store(mut self, store: PromptStore) -> Self {
        self.options.prompt_store = Some(store);
        self
    }

    /// Adds a LoRA adapter under the name of its file: `style` for `style.gguf`, and `style-2` for a second adapter of
    /// that name. `scale` applies to texts that do not [choose their own
    /// adapters](crate::generate::GenerateRequest::lora); 0.0 leaves the adapter out. Each call adds one adapter.
    pub fn lora(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.options.adapters.add(path.into(), scale);
        self
    }

    /// Adds a LoRA adapter under the given name.
    pub fn lora_named(mut self, name: impl Into<String>, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.options.adapters.lora.push(Adapter { name: name.into(), path: path.into(), scale });
        self
    }

    /// Adds a control vector, multiplied by `scale`, to the outputs of the model's layers in all texts. Each call adds
    /// one vector; the model gets the sum of all vectors.
    pub fn control_vector(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.options.adapters.control_vectors.push((path.into(), scale));
        self
    }

    /// Sets the first and last layer for control vectors, counted from 0. Layer 0 never gets a control vector. Default:
    /// all layers except layer 0.
    pub fn control_vector_layers(mut self, layers: RangeInclusive<u32>) -> Self {
        self.options.adapters.control_layers = Some(layers.into_inner());
        self
    }

    /// Sets a callback for the progress of the load: the load's [stage](LoadProgress::stage), and how much of the
    /// weights is loaded. Returning `false` cancels the load. The first call comes at once, before the load plans.
    /// During the warm-up, the callback is called before each batch. A further attempt begins with the planning stage
    /// again.
    ///
    /// ```no_run
    /// let builder = autoplace::Model::builder("model.gguf").progress(|progress| {
    ///     eprint!("\r{} {:.0} %   ", progress.stage.doing(), progress.done * 100.0);
    ///     true
    /// });
    /// ```
    pub fn progress(mut self, callback: impl FnMut(LoadProgress) -> bool + Send + 'static) -> Self {
        self.progress = Progress::new(callback);
        self
    }

    /// Sets how much the load computes to verify itself. Default: [`Verify::Quick`].
    pub fn verify(mut self, verify: Verify) -> Self {
        self.options.verify = verify;
        self
    }

    /// Sets what happens if the load took more memory of a GPU than the plan had left free for it. Default:
    /// [`OnDifference::BackOff`].
    pub fn on_difference(mut self, action: OnDifference) -> Self {
        self.options.on_difference = action;
        self
    }

    /// Sets the maximum number of attempts when memory runs short. Each attempt makes a new plan for the memory that is
    /// free at that time. Default: 4. With 1, the load never plans again; 0 counts as 1.
    pub fn attempts(mut self, n: u32) -> Self {
        self.options.attempts = n.max(1);
        self
    }

    /// Keeps measurements (of GPUs, of loads and of moves) in this folder instead of the user's cache folder.
    /// [Simulated](llama_sys::sim) GPUs are then measured too. See
    /// [`Detector::cache_folder`](crate::machine::Detector::cache_folder).
    pub fn headroom_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.learn = Folder::At(folder.into());
        self
    }

    /// Keeps no measurements: neither of GPUs, nor of loads, nor of moves.
    pub fn without_learning(mut self) -> Self {
        self.options.learn = Folder::Nowhere;
        self
    }

    /// Sets the folder through which the loads of this user coordinate their use of GPUs, and how long this load waits
    /// for other loads. Default: [`Leases::user`].
    pub fn leases(mut self, leases: Leases) -> Self {
        self.options.leases = leases;
        self
    }

    /// Plans for this machine instead of the detected one. GPUs that are not part of `machine` stay unused. The first
    /// attempt trusts the free bytes that `machine` states. Later attempts count at most the bytes that each GPU
    /// reports. The GPUs of `machine` must be devices of this process.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.options.machine = Some(machine);
        self
    }

    /// Also uses the devices of another machine. The rpc-server of that machine (`autoplace-rpc-server`, or the
    /// rpc-server of the same version of llama.cpp) listens at `endpoint`, which has the form `host:port`. Each call
    /// adds one machine. This needs the feature `rpc`.
    ///
    /// The load measures the link and the devices when it plans, and places layers on these devices only if that is
    /// faster. Each load sends the weights of those layers over the link. llama.cpp ends a process when its connection
    /// is lost, so the model runs in a worker. Without an [`isolation`](Self::isolation), the worker is this program's
    /// own executable ([`WorkerProcess::own_executable`](crate::WorkerProcess::own_executable)). If the connection is
    /// lost, the worker [dies](crate::worker::Error::Died). With [`OnDeath::Resume`](crate::worker::OnDeath) the model
    /// is placed again without the lost server, and the text continues.
    pub fn rpc(mut self, endpoint: impl Into<String>) -> Self {
        self.options.servers.endpoints.push(endpoint.into());
        self
    }

    /// Lets [`rpc`](Self::rpc) connect to other machines. The protocol has neither authentication nor encryption:
    /// anybody on the network can read the texts, and can run code on the servers. A server that is reached through a
    /// tunnel (docs/rpc.md) is local and does not need this setting.
    pub fn rpc_trusted_network(mut self, trusted: bool) -> Self {
        self.options.servers.trusted = trusted;
        self
    }

    /// Follows a saved plan exactly instead of making a new plan. [`SavedPlan::read`] reads a plan that `autoplace plan
    /// --save` wrote. Before the load, the plan is checked against the model, the present machine, and the bytes that
    /// llama.cpp itself counts. The load fails with [`Error::Conflict`] if other settings of the plan (context, layers,
    /// headroom) or any option of the draft are set too. It also fails with this error if a [`draft`](Self::draft), an
    /// [`mmproj`](Self::mmproj) or [`mtp`](Self::mtp) is requested that the plan does not contain.
    pub fn follow(mut self, saved: SavedPlan) -> Self {
        self.options.saved = Some(Box::new(saved));
        self.options.replan = false;
        self
    }

    /// Follows a saved plan if it still fits. If the machine has changed, or the plan turns out not to fit, the saved
    /// request is planned again, and the notes of the new plan list the changes. If the saved plan leaves room for a
    /// draft or an mmproj, it is planned again only if the file of that draft or mmproj is stated here too.
    pub fn follow_or_replan(mut self, saved: SavedPlan) -> Self {
        self.options.saved = Some(Box::new(saved));
        self.options.replan = true;
        self
    }

    /// Sets where the model runs. Default: in this process.
    ///
    /// In a [worker](Isolation::Process), the model generates as it would in this process, and a crash of llama.cpp
    /// becomes an error. Features that need the native model in this process are not available:
    /// [`Model::native`](super::Model::native), and samplers and drafters of the application. [`plan`](Self::plan)
    /// still calls llama.cpp in this process.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Makes the plan that [`load`](Self::load) would follow, and lets llama.cpp's own arithmetic confirm the plan.
    /// Nothing is allocated. If the model comes from a hub and fetching is allowed, the model is fetched first.
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] and [`Error::Profile`] for a file that is not a model; [`Error::Plan`] if the model does not fit
    /// or the request is impossible; [`Error::SavedPlan`] for a saved plan that cannot be read, belongs to another
    /// model, or does not fit the present machine; for a model of a hub, [`Error::NotFetched`], `Error::Hub`, or,
    /// without the feature `hub`, [`Error::NoHub`].
    pub fn plan(&self) -> Result<Plan, Error> {
        let options = self.options()?;
        match options.servers.isolation(self.isolation.clone())? {
            Isolation::Process(process) if !options.servers.endpoints.is_empty() => remote::plan_in(&process, options),
            _ => options.only_plan(),
        }
    }

    /// The hit rates that a plan expects of a cache of experts for this model. The rates were measured with earlier
    /// texts. This method reads them from the user's cache, or from the [folder](Self::headroom_folder) of these
    /// options. If no text was measured, default rates are returned. `file_bytes` is the size of the model's file in
    /// bytes. [`plan`](Self::plan) and [`load`](Self::load) call this method themselves; you need it only for a
    /// [`Planner`](plan::Planner) of your own.
    pub fn expert_hits(&self, machine: &Machine, file_bytes: u64) -> plan::speed::ExpertHits {
        let options = self.options().ok();
        options.and_then(|options| options.expert_hits(machine, file_bytes)).unwrap_or_default()
    }

    /// The [projector](Self::mmproj) as a companion, with the bytes that llama.cpp counts for the host and for each GPU
    /// of `machine` that is present in this process. `None` without a projector. [`plan`](Self::plan) and
    /// [`load`](Self::load) do this themselves; you need it only for a [`Planner`](plan::Planner) of your own.
    ///
    /// # Errors
    ///
    /// [`Error::NoMedia`] without the feature `media`, [`Error::Projector`] for a projector that is not supported,
    /// [`Error::Plan`] for one that belongs to another model, [`Error::Gguf`] if a file cannot be read.
    pub fn projector(&self, machine: &Machine) -> Result<Option<Companion>, Error> {
        let options = self.options()?;
        options.projector(&Header::open(&options.path)?, machine)
    }

    /// Changes that would put more of the model on GPUs, or make it fit at all: other types of keys and values, a
    /// shorter context, programs to close, another quantisation, another card. A plan has confirmed each change. If
    /// nothing fits, the error of [`plan`](Self::plan) or [`load`](Self::load) contains the same
    /// [advice](Error::advice).
    ///
    /// ```no_run
    /// println!("{}", autoplace::Model::builder("model.gguf").n_ctx(32_768).advice()?);
    /// # Ok::<(), autoplace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`plan`](Self::plan), except for a model that does not fit; [`Error::Worker`] with
    /// [`rpc`](Self::rpc), because plans with rpc-servers are made in a worker.
    pub fn advice(&self) -> Result<Advice, Error> {
        self.options()?.advice()
    }

    /// Makes a plan, loads the model, warms it up, and compares the memory that the model took with the plan.
    ///
    /// If memory runs short at any stage, everything is released, and the model is planned again for the memory that is
    /// free by then. There are up to [`attempts`](Self::attempts) attempts, and the [report](Model::report) lists all
    /// of them. A plan that is followed exactly is tried once; with [`follow_or_replan`](Self::follow_or_replan), the
    /// saved plan is the first attempt. The number of [`GpuLayers::Exactly`] is never lowered.
    ///
    /// # Errors
    ///
    /// The errors of [`plan`](Self::plan). If memory runs short, [`Error::AllAttempts`] lists the attempts. If only one
    /// attempt is allowed, its own error is returned: [`Error::OutOfMemory`] if another process has taken a GPU's
    /// memory since the plan was made, [`Error::Difference`] if the load took more than its plan had left free.
    /// [`Error::Native`] for other failures of llama.cpp: the file's data is damaged, or the progress callback
    /// cancelled the load. [`Error::Worker`] if the worker cannot start, or dies.
    pub fn load(self) -> Result<Model, Error> {
        let options = self.options()?;
        match options.servers.isolation(self.isolation)? {
            Isolation::None => options.load(self.progress),
            Isolation::Process(process) => options.load_in(process, &self.progress),
        }
    }

    /// The options to load with: a model's name on a hub is resolved to a file, and a saved plan's request is used.
    fn options(&self) -> Result<LoadOptions, Error> {
        let mut options = self.options.clone();
        let is_late = |plan: &Plan| {
            options.request != Request::new()
                || (options.mtp && !plan.context.mtp)
                || (options.draft.is_some() && !plan.companions.iter().any(|one| one.role == CompanionRole::Draft))
                || (options.mmproj.is_some() && !plan.companions.iter().any(|one| one.role == CompanionRole::Mmproj))
                || options.draft_options != DraftOptions::default()
        };
        let is_late = options.saved.as_ref().is_some_and(|saved| is_late(&saved.plan));
        if let Some(late) = self.conflict.or(is_late.then_some("follow")) {
            return Err(Error::Conflict { late: late.to_owned() });
        }
        if let Some(saved) = &options.saved {
            saved.check()?;
            (options.request, options.mtp) = (saved.request.clone(), saved.plan.context.mtp);
            if let Some(draft) = saved.plan.companions.iter().find(|one| one.role == CompanionRole::Draft) {
                options.draft_options = draft.draft.clone();
            }
        }
        #[cfg(feature = "hub")]
        self.source.place(&mut options, &self.isolation)?;
        if let Some(name) = options.hub_name().or_else(|| options.mmproj_name()) {
            return Err(Error::NoHub { name: name.to_owned() });
        }
        Ok(options)
    }
}
