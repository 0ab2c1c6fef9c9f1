//! A named model behind the API.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::adapters::{self, Entry, MAX_ADAPTERS, Set};
use super::chat::ChatRequest;
use super::choice::{Choice, Reading};
use super::completion::{Completion, Writer};
use super::error::ApiError;
use super::infill::{InfillEvents, InfillRequest};
use super::logprobs::TokenTable;
use super::media::Seen;
#[cfg(feature = "media")]
use super::media_hosts::MediaHosts;
use super::messages::{self, MessageEvents};
use super::options::Options;
use super::reading::{self, List};
use super::responses::{self, ResponseEvents, Store};
use super::shape::{Endpoint, Frame, now};
use super::text::TextRequest;
use super::timings::Totals;
use super::translation::{Places, Translation};
use autoplace::chat::{self, ChatTemplate};
use autoplace::generate::{Engine, GenerateRequest, Sampling, Speculation, WhenFull};
use autoplace::load::Model;
use autoplace::memory::companion::CompanionRole;

/// A model that an [`Engine`] runs, reachable through OpenAI's API. Clones are handles of the same API.
///
/// Its methods parse a request, check it and queue it, and return before the answer is computed. With long prompts this
/// takes a moment, so an async task should call them on a thread that may block.
#[derive(Debug, Clone)]
pub struct Api {
    pub(super) model: Model,
    pub(super) engine: Engine,
    name: String,
    /// Further names that requests may use.
    aliases: Vec<String>,
    tags: BTreeSet<String>,
    /// The template, or the reason why there is none.
    pub(super) template: Result<ChatTemplate, Arc<chat::Error>>,
    created: u64,
    requests: Arc<AtomicU64>,
    /// Default sampling parameters.
    sampling: Sampling,
    /// The adapters for requests that name none. `None` means the adapters of the load.
    set: Arc<RwLock<Option<Set>>>,
    /// What happens when a text fills its context.
    when_full: WhenFull,
    /// The maximum number of tokens of answers whose request sets none.
    max_tokens: Option<usize>,
    /// Whether the computed states of prompts are used for requests that do not say so.
    caches_prompts: bool,
    /// Whether prompts of `/infill` have the suffix before the prefix.
    is_suffix_first: bool,
    /// The texts of tokens. The table is made when a request first asks for log-probabilities.
    tokens: Arc<OnceLock<Arc<TokenTable>>>,
    pub(super) totals: Arc<Totals>,
    /// Responses of `/v1/responses` that are stored. Later requests can continue them.
    responses: Arc<Store>,
    /// Whether requests come from a router, which has already checked the model's name.
    is_routed: bool,
    /// Hosts from which images may be fetched.
    #[cfg(feature = "media")]
    hosts: Option<Arc<MediaHosts>>,
}

impl Api {
    /// Serves the model under this name, with its own chat template. If a draft model is loaded together with the
    /// model, it drafts for all texts.
    pub fn new(model: &Model, engine: &Engine, name: impl Into<String>) -> Self {
        let shipped = || ChatTemplate::from_header(model.header()?);
        Self {
            model: model.clone(),
            engine: engine.clone(),
            name: name.into(),
            aliases: Vec::new(),
            tags: BTreeSet::new(),
            template: shipped().map_err(Arc::new),
            created: now(),
            requests: Arc::default(),
            sampling: model.sampling(),
            set: Arc::default(),
            when_full: WhenFull::Stop,
            max_tokens: None,
            caches_prompts: true,
            is_suffix_first: false,
            tokens: Arc::default(),
            totals: Arc::default(),
            responses: Arc::default(),
            is_routed: false,
            #[cfg(feature = "media")]
            hosts: None,
        }
    }

    /// Shares the stored responses and the counter of requests with the APIs of the server's other models, so that each
    /// id belongs to one response of the whole server. The model's name in requests is not checked, because a router
    /// has chosen this model by that name.
    #[cfg(feature = "pool")]
    pub(super) fn sharing(mut self, requests: &Arc<AtomicU64>, responses: &Arc<Store>, created: u64) -> Self {
        (self.requests, self.responses, self.created) = (Arc::clone(requests), Arc::clone(responses), created);
        self.is_routed = true;
        self
    }

    /// Adds another name for the model. Requests may use any of its names. Answers contain the name that was given to
    /// [`new`](Self::new).
    #[must_use]
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.aliases.push(name.into());
        self
    }

    /// Adds a tag, which `/v1/models` shows. Requests cannot use it.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// Uses this chat template and not the model's own.
    #[must_use]
    pub fn template(mut self, template: ChatTemplate) -> Self {
        self.template = Ok(template);
        self
    }

    /// Sets the hosts from which images of requests may be fetched. By default there are none, and every image must be
    /// a data URL.
    #[cfg(feature = "media")]
    #[must_use]
    pub fn media_hosts(mut self, hosts: MediaHosts) -> Self {
        self.hosts = Some(Arc::new(hosts));
        self
    }

    /// Sets the sampling parameters for requests that do not set them. Default: the model's own.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the maximum number of tokens for answers whose request sets none. Default: the answer may fill the context.
    #[must_use]
    pub const fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }

    /// Sets whether the text of a request that does not set `cache_prompt` begins with what other texts have computed.
    /// Default: yes.
    #[must_use]
    pub const fn cache_prompt(mut self, caches: bool) -> Self {
        self.caches_prompts = caches;
        self
    }

    /// Sets what happens when a text fills its context. Default: the text ends with `finish_reason` `length`. With
    /// shifting, `n_keep` in a request is the number of prompt tokens that are kept (-1: all).
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Sets whether prompts of `/infill` have the suffix before the prefix, as some models expect. Default: the prefix
    /// comes first.
    #[must_use]
    #[doc(alias = "spm_infill")]
    pub fn infill_suffix_first(mut self, is_suffix_first: bool) -> Self {
        self.is_suffix_first = is_suffix_first;
        self
    }

    /// Answers `POST /v1/chat/completions`.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, 404 for another model, 503 if the engine's queue is full or the engine has
    /// ended.
    pub fn chat(&self, body: &[u8]) -> Result<Completion, ApiError> {
        self.answer(Endpoint::Chat, body).map(|(completion, _)| completion)
    }

    /// Answers a chat request in the form that this endpoint uses. Also returns the request's stop strings.
    fn answer(&self, endpoint: Endpoint, body: &[u8]) -> Result<(Completion, Vec<String>), ApiError> {
        let request = self.read_chat(body)?;
        let choices = vec![request.generate.clone()];
        let completion = self.submit(endpoint, &request.options, (choices, &request.media), || request.reading())?;
        #[cfg(feature = "media")]
        let completion = completion.holding(request.reserved);
        Ok((completion.with_unenforced(request.unenforced), request.options.stops().to_vec()))
    }

    pub(super) fn read_chat(&self, body: &[u8]) -> Result<ChatRequest, ApiError> {
        let template = self.template.as_ref().map_err(|error| &**error);
        let seen = Seen::by(&self.model);
        #[cfg(feature = "media")]
        let seen = seen.asking(self.hosts.as_deref());
        ChatRequest::read(body, (&self.model, &self.sampling), template, seen)
    }

    /// Answers `POST /v1/messages`, Anthropic's API. [`ApiError::to_anthropic_json`] writes errors in Anthropic's form.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn message(&self, body: &[u8]) -> Result<Completion, ApiError> {
        let (Translation { body, places, left_out }, shown) = messages::translate(body)?;
        let answer = self.answer(Endpoint::Messages, &body);
        let (completion, stops) = answer.map_err(|error| places.restore(error))?;
        let events = MessageEvents::new(completion.frame().clone(), stops, shown);
        Ok(completion.translated(Writer::Message(Box::new(events)), places, left_out))
    }

    /// Answers `POST /v1/messages/count_tokens`: the number of tokens in the prompt that [`message`](Self::message)
    /// would make.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, 404 for another model.
    pub fn count_message_tokens(&self, body: &[u8]) -> Result<Value, ApiError> {
        let (translation, _) = messages::translate(body)?;
        Ok(json!({"input_tokens": self.count_translated(&translation)?}))
    }

    /// Answers `POST /v1/responses`, OpenAI's other API. A response is stored for `previous_response_id`, unless the
    /// request contains `store: false`. The newest 1,024 are kept, up to 32 MiB in all. Clones share the stored
    /// responses.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat), and status 404 if the request names a response that is not stored.
    pub fn respond(&self, body: &[u8]) -> Result<Completion, ApiError> {
        let (Translation { body, places, left_out }, asked) = responses::translate(body, &self.responses)?;
        let answer = self.answer(Endpoint::Responses, &body);
        let (completion, _) = answer.map_err(|error| places.restore(error))?;
        let events = ResponseEvents::new(completion.frame().clone(), asked, Arc::clone(&self.responses));
        Ok(completion.translated(Writer::Response(Box::new(events)), places, left_out))
    }

    /// Answers `POST /v1/responses/input_tokens`: the number of tokens in the prompt that [`respond`](Self::respond)
    /// would make.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, 404 for another model.
    pub fn count_response_tokens(&self, body: &[u8]) -> Result<Value, ApiError> {
        let (translation, _) = responses::translate(body, &self.responses)?;
        Ok(json!({"object": "response.input_tokens", "input_tokens": self.count_translated(&translation)?}))
    }

    /// Answers `GET /v1/responses/ID` with a stored response as JSON.
    ///
    /// # Errors
    ///
    /// Status 404 if the response is not stored.
    pub fn response(&self, id: &str) -> Result<Arc<str>, ApiError> {
        self.responses.response(id).ok_or_else(|| no_response(id))
    }

    /// Answers `DELETE /v1/responses/ID` and deletes the stored response.
    ///
    /// # Errors
    ///
    /// Status 404 if the response is not stored.
    pub fn delete_response(&self, id: &str) -> Result<Value, ApiError> {
        match self.responses.delete(id) {
            true => Ok(json!({"id": id, "object": "response", "deleted": true})),
            false => Err(no_response(id)),
        }
    }

    /// The number of tokens in a chat's prompt.
    pub(super) fn count_tokens(&self, body: &[u8]) -> Result<usize, ApiError> {
        let request = self.read_chat(body)?;
        self.check_name(request.options.model.as_deref())?;
        let tokens = self.model.count_tokens(request.prompt);
        tokens.map_err(|error| ApiError::of_media(&error, &request.media, "messages"))
    }

    fn count_translated(&self, translation: &Translation) -> Result<usize, ApiError> {
        self.count_tokens(&translation.body).map_err(|error| translation.places.restore(error))
    }

    /// Answers `POST /v1/completions`.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn complete(&self, body: &[u8]) -> Result<Completion, ApiError> {
        let request = TextRequest::read(body, (&self.model, &self.sampling))?;
        self.submit(Endpoint::Completions, &request.options, (request.texts, &[]), || Reading::Text)
    }

    /// Answers `POST /infill`, llama-server's fill-in-the-middle: the text between `input_prefix` and `input_suffix`,
    /// with other files in `input_extra`. Parts that do not fit into the context are left out, and then `truncated` is
    /// true in the answer.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat), and status 501 if the vocabulary has no fill-in-the-middle tokens.
    pub fn infill(&self, body: &[u8]) -> Result<Completion, ApiError> {
        let own = (&self.model, &self.sampling);
        let read = self.engine.with_vocab(|vocab| InfillRequest::read(body, own, vocab, self.is_suffix_first));
        let mut request = read.map_err(|error| ApiError::of_generation(&error, "input_prefix"))??;
        let reading = || Reading::Lines(request.limits());
        let completion =
            self.submit(Endpoint::Infill, &request.options, (vec![request.generate.clone()], &[]), reading)?;
        let events = InfillEvents::new(completion.frame().clone(), &mut request);
        Ok(completion.translated(Writer::Infill(Box::new(events)), Places::default(), Vec::new()))
    }

    /// Queues each text `n` times. If one does not fit into the queue, none is queued. `media` contains the places of
    /// the request's pictures and sounds.
    fn submit(
        &self,
        endpoint: Endpoint,
        options: &Options,
        (texts, media): (Vec<GenerateRequest>, &[String]),
        reading: impl Fn() -> Reading,
    ) -> Result<Completion, ApiError> {
        self.check_name(options.model.as_deref())?;
        let prompt_name = endpoint.prompt();
        let asked = texts.len().saturating_mul(options.n);
        let most = self.engine.capacity();
        if asked > most {
            let message = format!("{asked} answers were requested: at most {most} can run and wait at once");
            return Err(ApiError::invalid(if texts.len() > most { prompt_name } else { "n" }, message));
        }
        let tokens = match texts.iter().any(GenerateRequest::reports_logprobs) {
            true => Some(self.tokens(prompt_name)?),
            false => None,
        };
        let set = match &options.lora[..] {
            [] => self.set(),
            entries => Some(adapters::set(entries, self.model.adapters(), "lora")?),
        };
        let speculation = self.speculation();
        let mut choices = Vec::with_capacity(asked);
        for (prompt, generate) in texts.into_iter().enumerate() {
            for _ in 0..options.n {
                let generate = generate.clone().cache_prompt(self.caches_prompts);
                let generate = self.max_tokens.into_iter().fold(generate, GenerateRequest::max_tokens);
                let mut generate = options.apply(generate, choices.len());
                if let Some(set) = &set {
                    generate = generate.lora(set.iter().cloned());
                }
                let generate = generate.when_full(options.when_full(self.when_full)).speculate(speculation);
                let answer = self.engine.try_submit(generate);
                let answer = answer.map_err(|error| options.error(&error, prompt_name, media))?;
                let totals = Arc::clone(&self.totals);
                choices.push(Choice::new(answer, reading(), prompt, tokens.clone(), totals));
            }
        }
        let stream = options.stream.then_some(options.stream_options.include_usage == Some(true));
        let frame = Frame { endpoint, id: self.id(endpoint), created: now(), model: self.name.clone() };
        Ok(Completion::new(frame, choices, stream))
    }

    /// The source of draft tokens: the draft model, if one is loaded together with the model.
    pub(super) fn speculation(&self) -> Speculation {
        let plan = self.model.placement();
        match plan.companions.iter().any(|beside| beside.role == CompanionRole::Draft) {
            true => Speculation::draft_model(),
            false => Speculation::Off,
        }
    }

    fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        if self.is_routed { Ok(()) } else { check_name(asked, &self.name, &self.aliases) }
    }

    fn tokens(&self, prompt_name: &str) -> Result<Arc<TokenTable>, ApiError> {
        if let Some(tokens) = self.tokens.get() {
            return Ok(Arc::clone(tokens));
        }
        let read = self.engine.with_vocab(TokenTable::new);
        let read = read.map_err(|error| ApiError::of_generation(&error, prompt_name))?;
        Ok(Arc::clone(self.tokens.get_or_init(|| Arc::new(read))))
    }

    /// A new id, which no other request of this process has.
    fn id(&self, endpoint: Endpoint) -> String {
        let kind = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions | Endpoint::Infill => "cmpl",
            Endpoint::Messages => "msg",
            // Everybody who knows the id can read the stored response, so nobody must be able to guess it.
            Endpoint::Responses => return self.responses.new_id(),
        };
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{:x}-{number:x}", self.created)
    }

    /// Answers `GET /lora-adapters`: lists the model's adapters, with the scales for requests that name no adapters.
    pub fn adapters(&self) -> Value {
        adapters::list(self.model.adapters(), self.set().as_ref())
    }

    /// Answers `POST /lora-adapters`: sets the adapters for later requests that name no adapters. The body has the same
    /// form as `lora` in a request. All other adapters are off. The setting also applies to clones.
    ///
    /// # Errors
    ///
    /// Status 400 if the body does not have that form, or names an adapter that the model does not have.
    pub fn apply_adapters(&self, body: &[u8]) -> Result<Value, ApiError> {
        let no_list = |error| ApiError::new(400, format!("the body is not a list of adapters: {error}"));
        let body: &RawValue = serde_json::from_slice(body).map_err(no_list)?;
        let List::<Entry, MAX_ADAPTERS>(entries) = reading::value(body, "the body")?;
        let set = adapters::set(&entries, self.model.adapters(), "the body")?;
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Some(set);
        Ok(json!({"success": true}))
    }

    /// Turns all adapters off for later requests that name no adapters.
    pub fn apply_no_adapters(&self) {
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Some(Set::new());
    }

    fn set(&self) -> Option<Set> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn default_sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Number of texts that can be computed at once.
    pub(super) fn sequences(&self) -> usize {
        self.model.placement().context.n_seq_max as usize
    }

    /// Answers `GET /v1/models`: lists this model, and these further models. The `aliases` of a model are all its
    /// names, as in llama-server.
    pub fn models(&self, others: &[&str]) -> Value {
        let names: BTreeSet<&str> = [&self.name].into_iter().chain(&self.aliases).map(String::as_str).collect();
        let others = others.iter().copied().filter(|other| !names.contains(other));
        let others: Vec<_> = others.map(|other| (other, BTreeSet::from([other]))).collect();
        let all = std::iter::once((&*self.name, names)).chain(others);
        let no_tags = BTreeSet::new();
        let model = |(name, names): (&str, BTreeSet<&str>)| {
            let tags = if name == self.name { &self.tags } else { &no_tags };
            listed(name, &names, tags, self.created)
        };
        json!({"object": "list", "data": all.map(model).collect::<Value>()})
    }
}

pub(super) fn no_response(id: &str) -> ApiError {
    ApiError::new(404, responses::not_stored(id))
}

/// The entry of a model in `GET /v1/models`.
pub(super) fn listed(name: &str, names: &BTreeSet<&str>, tags: &BTreeSet<String>, created: u64) -> Value {
    json!({
        "id": name, "aliases": names, "tags": tags, "object": "model", "created": created, "owned_by": "autoplace",
    })
}

/// Checks the model's name in a request, if there is one.
pub(super) fn check_name(asked: Option<&str>, name: &str, aliases: &[String]) -> Result<(), ApiError> {
    let is_named = |asked: &str| asked == name || aliases.iter().any(|alias| alias == asked);
    match asked {
        // Some clients send an empty name if the user has set none.
        Some(asked) if !asked.is_empty() && !is_named(asked) => {
            let also: String = aliases.iter().map(|alias| format!(" or `{alias}`")).collect();
            let message = format!("the model `{asked}` does not exist: this server's model is `{name}`{also}");
            Err(ApiError { status: 404, ..ApiError::invalid("model", message).with_code("model_not_found") })
        }
        _ => Ok(()),
    }
}
