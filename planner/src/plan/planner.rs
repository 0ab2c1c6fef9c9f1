//! The planner, which makes a plan from a profile, a machine and a request.

use std::borrow::Cow;

use crate::machine::{Machine, MoveRates, UnusedGpu, UnusedReason};
use crate::memory;
use crate::memory::{Companion, ContextParams, FileFacts, MAX_ROLLBACK_TOKENS, NotMapped};
use crate::profile::ModelProfile;

use super::fit::Chosen;
use super::search::Placements;
use super::speed::{ExpertHits, Rates, Speed, SpeedModel};
use super::{Context, Error, KvCache, ModelSummary, Paging, Plan, PlannedMoeCache, Policy, Probe, Request, reasons};

/// Makes plans for one model on one machine.
///
/// ```
/// # use autoplace_planner::{gguf::Header, machine::{Gpu, Host, Machine, gib}, plan::Planner, profile::ModelProfile};
/// # fn f(header: &Header) -> Result<(), Box<dyn std::error::Error>> {
/// let profile = ModelProfile::from_header(header)?;
/// let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("RTX 4090").total(gib(24)).free(gib(22)));
/// let plan = Planner::new(&profile, &machine).plan()?;
/// println!("{plan}");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Planner<'a> {
    pub(super) profile: Cow<'a, ModelProfile>,
    pub(super) machine: Cow<'a, Machine>,
    pub(super) request: Request,
    pub(super) companions: Vec<Companion>,
    pub(super) moves: MoveRates,
    pub(super) hits: ExpertHits,
}

impl<'a> Planner<'a> {
    /// A planner with the default request.
    pub fn new(profile: &'a ModelProfile, machine: &'a Machine) -> Self {
        let (profile, machine) = (Cow::Borrowed(profile), Cow::Borrowed(machine));
        let (request, moves, hits) = (Request::new(), MoveRates::default(), ExpertHits::default());
        Self { profile, machine, request, companions: Vec::new(), moves, hits }
    }

    /// Sets the request.
    pub fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// The same planner, with [`Request::allow_paging`] turned on.
    pub fn with_paging(mut self) -> Self {
        self.request.allow_paging = true;
        self
    }

    /// Sets the measured times of loads and moves of this model's file on this machine. From these times, the time of a
    /// move is predicted in a plan with [two placements](crate::plan::Plan::by_depth). Without them, the prediction
    /// uses stated figures.
    pub fn move_rates(mut self, moves: MoveRates) -> Self {
        self.moves = moves;
        self
    }

    /// Sets how often a cache of experts holds the expert that a token uses, as observed with texts of this model. The
    /// default is a published curve.
    pub const fn expert_hits(mut self, hits: ExpertHits) -> Self {
        self.hits = hits;
        self
    }

    /// Leaves memory for a file that is loaded together with the model, such as an mmproj or a draft. The file goes to
    /// a GPU if one has room.
    pub fn beside(mut self, companion: Companion) -> Self {
        self.companions.push(companion);
        self
    }

    /// Plans by the estimate alone. The plan is the fastest placement that fits, or the best placement according to the
    /// request's [`Policy`].
    ///
    /// # Errors
    ///
    /// [`Error::DoesNotFit`] if no placement fits, with the bytes missing on each device; [`Error::Unknown`] if only a
    /// probe can measure the model's memory.
    pub fn plan(&self) -> Result<Plan, Error> {
        self.plan_by(None)
    }

    /// Plans with llama.cpp's own numbers: the estimate proposes placements, and the probe accepts or rejects them.
    /// llama.cpp has confirmed the resulting placement. It has also rejected the next better placement, unless the
    /// corrected estimate already excludes that placement.
    ///
    /// The plan needs at most 6 probes on one GPU and 12 on several. If none of the probed placements fits, the search
    /// for the most layers may use the same number again. Growth of the context may use up to 3 more. With more than
    /// two GPUs, no probe is spent on a gain below half a percent. If the planner may choose the type of the cache
    /// ([`KvCache`]), its place ([`KvPlace`](super::KvPlace)) or a smaller ubatch ([`Request::min_ubatch`]), each
    /// combination may use the same number of probes.
    ///
    /// # Errors
    ///
    /// The errors of [`plan`](Self::plan), but never [`Error::Unknown`]. [`Error::Probe`] if the probe fails on a GPU
    /// and no other GPU can take its place.
    pub fn plan_probed(&self, probe: &dyn Probe) -> Result<Plan, Error> {
        self.plan_by(Some(probe))
    }

    /// Makes a plan without paging. If nothing fits and the request allows paging, makes a plan with paging.
    pub(super) fn plan_by(&self, probe: Option<&dyn Probe>) -> Result<Plan, Error> {
        if !self.request.allow_paging {
            return self.plan_once(probe);
        }
        let in_memory = self.clone().request(self.request.clone().allow_paging(false));
        match in_memory.plan_once(probe) {
            Err(Error::DoesNotFit { .. }) => {
                let mut request = self.request.clone();
                (request.params.mmap, request.params.repack) = (true, false);
                // A longer context would leave less memory for weights.
                request.context = Context::Tokens(request.tokens(&self.profile));
                request.params.n_ctx = 0;
                let mut found = self.clone().request(request).plan_once(probe)?;
                let note = "the file is mapped, and no weight is rearranged for the CPU, because the model does not fit otherwise";
                found.notes.push(note.to_owned());
                Ok(found)
            }
            found => found,
        }
    }

    fn plan_once(&self, probe: Option<&dyn Probe>) -> Result<Plan, Error> {
        self.check_predicting()?;
        if !self.companions.is_empty() {
            return self.beside_companions(probe);
        }
        let policy = match (self.unknown(), probe) {
            (Some(reason), None) => return Err(Error::Unknown { model: self.profile.name.clone(), reason }),
            // The estimate cannot rank placements by speed if it does not model the architecture. For a context that
            // predicts further tokens, the estimate lacks only the compute buffers, and probes correct these.
            (Some(_), Some(_)) if self.request.embeds() || self.profile.unmodelled().is_some() => Policy::MostLayers,
            // A request for an exact number of layers gets whole layers, not another split of the same number.
            _ if self.request.gpu_layers.is_exact() => Policy::MostLayers,
            _ => self.request.policy,
        };
        let params = self.params();
        let model = SpeedModel::new(&self.profile, &params, Rates::for_devices(&[], &self.machine.host));
        let model = model.expert_hits(self.hits);
        let (policy, mut chosen) = match self.is_stated() {
            true => (Policy::MostLayers, self.stated(&params, probe)?),
            false => self.chosen(policy, (&params, &model), probe)?,
        };
        chosen = self.with_moe_cache(chosen, policy, &model, probe)?;
        if let Some(growth) = self.request.growth(&self.profile) {
            chosen.grow(&self.profile, growth, probe)?;
        }
        // The other placement gets the context of this placement, which may have grown.
        let by_depth = match policy {
            Policy::Fastest => self.by_depth(&mut chosen, &model, probe)?,
            Policy::MostLayers => None,
        };
        Ok(Plan { by_depth: by_depth.map(Box::new), ..self.finish(chosen, &model)? })
    }

    fn check_predicting(&self) -> Result<(), Error> {
        let request = &self.request;
        self.profile.check_predicting(request.params.n_seq_max, request.embeds())?;
        request.asked_context()?;
        let n_ctx = request.tokens(&self.profile);
        let asked = request.workload.iter().map(|workload| ("workload", workload.tokens()));
        let asked = asked.chain(request.fixed_depth().map(|depth| ("depth", depth)));
        let at = request.at.iter().map(|&depth| ("at", depth));
        match asked.chain(at).find(|&(_, tokens)| tokens > n_ctx) {
            Some((parameter, tokens)) => Err(Error::Memory(memory::Error::Context {
                parameter,
                value: u64::from(tokens),
                limit: format!("the context has {n_ctx} tokens"),
            })),
            None => Ok(()),
        }
    }

    /// The best placement by `policy`; if `Fastest` finds none, the placement with the most layers. Also returns the
    /// policy that chose the placement.
    fn chosen<'s>(
        &'s self,
        policy: Policy,
        (params, model): (&ContextParams, &SpeedModel),
        probe: Option<&'s dyn Probe>,
    ) -> Result<(Policy, Chosen<'s>), Error> {
        let (profile, machine, request) = (&*self.profile, &*self.machine, &self.request);
        let best = |request: &'s Request, policy| {
            Placements::new(profile, machine, request, (params, model), policy, probe)?.choose()
        };
        let (policy, mut chosen) = match (policy, best(request, policy)) {
            (Policy::Fastest, Err(Error::DoesNotFit { .. })) => {
                (Policy::MostLayers, best(request, Policy::MostLayers)?)
            }
            (policy, chosen) => (policy, chosen?),
        };
        if chosen.params.type_k != params.type_k {
            let note = self.bought_by_smaller_cache(&chosen, policy, (params, model), probe)?;
            chosen.notes.push(note);
        }
        Ok((policy, chosen))
    }

    /// The note on a smaller cache type: what it gains compared with the best placement with the given type.
    fn bought_by_smaller_cache(
        &self,
        chosen: &Chosen<'_>,
        policy: Policy,
        (params, model): (&ContextParams, &SpeedModel),
        probe: Option<&dyn Probe>,
    ) -> Result<String, Error> {
        let request = self.request.clone().kv_cache(KvCache::Given);
        let (profile, machine) = (&*self.profile, &*self.machine);
        let wider = Placements::new(profile, machine, &request, (params, model), policy, probe)?.choose();
        let wider = match wider {
            Err(Error::DoesNotFit { .. } | Error::Probe { .. }) => None,
            wider => Some(wider?),
        };
        let work = self.request.work(profile);
        let seconds = |chosen: &Chosen<'_>| -> Result<f64, Error> {
            let model = model.over(profile, &chosen.params, Rates::for_devices(&chosen.room.gpus, chosen.room.host));
            Ok(model.overrides(profile, &chosen.split.overrides)?.seconds(&chosen.assignment, &work))
        };
        let speedup = wider.as_ref().map(|wider| Ok::<_, Error>(seconds(wider)? / seconds(chosen)?)).transpose()?;
        Ok(reasons::smaller_cache(chosen, params.type_k, wider.as_ref().zip(speedup)))
    }

    /// The request's parameters, with every default resolved.
    pub(super) fn params(&self) -> ContextParams {
        let mut params = self.request.params.clone();
        params.n_ctx = self.request.tokens(&self.profile);
        params.mtp = self.profile.predicts();
        // The search adds a cache of experts if the cache is useful.
        params.moe_cache_size = 0;
        params.n_rs_seq = if self.profile.goes_back_by_states() {
            // A computation can have two tokens more than the drafts (llama-batch.cpp, `split_equal`).
            let most = params.computed().min(params.n_ctx).saturating_sub(2);
            self.request.drafts(&self.profile).min(most).min(MAX_ROLLBACK_TOKENS)
        } else {
            0
        };
        if self.request.embeds() {
            // llama.cpp pools the tokens of a text within one computation, and would compute texts in pieces with
            // separate caches. For mean pooling it can only reserve the same number of tokens for each text
            // (llama-context.cpp, `graph_reserve`).
            params.n_seq_max = params.n_seq_max.min(params.n_ctx).max(1);
            params.n_ctx = params.n_ctx.div_ceil(params.n_seq_max).saturating_mul(params.n_seq_max);
            (params.n_batch, params.n_ubatch) = (params.n_ctx, params.n_ctx);
            params.n_outputs_max = 0;
            params.kv_unified = true;
        }
        if params.n_outputs_max > 0 {
            // One token of every sequence, and each of its drafts, may request logits in one batch. llama.cpp aborts
            // the process if more tokens request logits than `n_outputs_max`.
            let each = self.request.drafts(&self.profile).saturating_add(1);
            let all = params.n_seq_max.saturating_mul(each).min(params.n_batch);
            params.n_outputs_max = params.n_outputs_max.max(params.n_seq_max).max(all);
        }
        params
    }

    /// The reason why the estimate does not cover this model or context; only a probe can then plan it. `None` if the
    /// estimate covers both.
    pub fn unknown(&self) -> Option<String> {
        let embeds = self.request.embeds().then(|| {
            "we have no model of the graph that a context for embeddings computes (llama-graph.cpp, build_pooling)"
                .to_owned()
        });
        let predicts = self.profile.predicts().then(|| {
            "we have no model of the graph that a context that predicts further tokens computes (models/*.cpp, graph_mtp)"
                .to_owned()
        });
        self.profile.unmodelled().or(embeds).or(predicts)
    }

    /// The plan of a chosen placement, without a second placement for other depths.
    pub(super) fn finish(&self, chosen: Chosen<'_>, model: &SpeedModel) -> Result<Plan, Error> {
        let profile = &*self.profile;
        let layers = profile.full_offload();
        let n = chosen.split.n_gpu_layers;
        let workload = self.request.work(profile);
        let rates = Rates::for_devices(&chosen.room.gpus, chosen.room.host);
        // A context for embeddings generates nothing, so it has no speed.
        let work = (workload, &self.request.depths(chosen.params.n_ctx)[..]);
        let model = model.over(profile, &chosen.params, rates);
        let speed = (!self.request.embeds())
            .then(|| Speed::predict(profile, &model, work, &chosen.assignment, &chosen.split))
            .transpose()?;
        let paging = Paging::for_placement(profile, &chosen)?;
        let speed = match (speed, paging) {
            (Some(speed), Some(paging)) => Some(paging.slow_down(speed, chosen.params.n_ubatch)),
            (speed, _) => speed,
        };
        let moe_cache = chosen.cache.map(|gain| self.planned_moe_cache(&chosen, gain, &model)).transpose()?;
        let mut notes = vec![chosen.reason()];
        notes.extend(moe_cache.as_ref().map(PlannedMoeCache::reason));
        notes.extend(paging.map(|paging| paging.to_string()));
        notes.extend(reasons::changed(profile, &self.request, &chosen.params));
        notes.extend(chosen.notes);
        notes.extend(reasons::notes(profile, &self.request, &chosen.params, chosen.confidence));
        // The most common reason for a slow model is a card that this build cannot drive. If a card is only a second
        // entry for the same hardware, there is no note about it.
        let is_lost = |unused: &&UnusedGpu| !matches!(unused.reason, UnusedReason::SameAs { .. });
        notes.extend(self.machine.unused_gpus.iter().filter(is_lost).map(ToString::to_string));
        let windows = profile.state.windows();
        let placements = chosen.room.placements(&chosen.levels, &chosen.counts, layers - n);
        notes.extend(reasons::carried(&self.machine, &placements));
        let context = chosen.params.clone().mapped_for(FileFacts::from_profile(profile), &chosen.room.gpus);
        if context.mmap != chosen.params.mmap {
            notes.extend(
                NotMapped::check(FileFacts::from_profile(profile), &chosen.room.gpus)
                    .as_ref()
                    .map(NotMapped::to_string),
            );
        }
        Ok(Plan {
            model: ModelSummary {
                path: profile.path.clone(),
                name: profile.name.clone(),
                architecture: profile.architecture.clone(),
                file_type: profile.file_type.map(str::to_owned),
                file_bytes: profile.file_bytes,
                blocks: profile.n_layer(),
                n_ctx_train: profile.hparams.n_ctx_train,
                sliding_window: windows.is_some_and(|windows| windows.contains(&true)),
            },
            n_gpu_layers: n,
            tensor_split: chosen.split.tensor_split,
            overrides: chosen.split.overrides,
            full_offload: n == layers && chosen.split_blocks == 0,
            split_blocks: chosen.split_blocks,
            placements,
            context,
            confidence: chosen.confidence,
            companions: Vec::new(),
            moe_cache,
            paging,
            speed,
            notes,
            by_depth: None,
        })
    }
}
