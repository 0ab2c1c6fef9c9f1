//! Options that chats and completions have in common: how a text is generated, and how it is sent.

use super::adapters::{Entry, MAX_ADAPTERS};
use super::error::ApiError;
use super::form;
use super::reading::{self, Body, Entries, List};
use autoplace::generate::{Constraint, Error, GenerateRequest, Mirostat, Sampling, WhenFull};
use serde::Deserialize;

/// Maximum number of answers to one request, for all of its prompts together.
pub(super) const MAX_CHOICES: usize = 128;
const MAX_STOPS: usize = 32;
/// Maximum bytes of all stop strings. Each answer has its own copy.
const MAX_STOP_BYTES: usize = 64 << 10;
/// Maximum number of tokens whose logit a request may change.
const MAX_BIASES: usize = 4096;
/// Maximum number of entries in a list of sampling parameters.
const MAX_ENTRIES: usize = 64;

/// The parameters that both endpoints have.
#[derive(Debug, Deserialize)]
pub(super) struct Options {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    pub(super) stream_options: StreamOptions,
    #[serde(default = "one")]
    pub(super) n: usize,
    #[serde(skip)]
    stops: Vec<String>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    seed: Option<i64>,
    #[serde(skip)]
    biases: Vec<(i32, f32)>,
    cache_prompt: Option<bool>,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    min_tokens: usize,
    /// How many tokens of the prompt a shift keeps.
    n_keep: Option<i64>,
    #[serde(skip)]
    stop_tokens: Vec<i32>,
    /// The adapters that the request names; empty if it names none.
    #[serde(skip)]
    pub(super) lora: Vec<Entry>,
    /// The constraint on the text.
    #[serde(skip)]
    pub(super) constraint: Option<Constraint>,
    /// The name of the parameter that set the constraint.
    #[serde(skip)]
    form: &'static str,
    #[serde(skip)]
    aliases: Vec<(&'static str, &'static str)>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

fn one() -> usize {
    1
}

impl Options {
    pub(super) fn read(body: &Body<'_>) -> Result<Self, ApiError> {
        let mut options: Self = body.part()?;
        if !(1..=MAX_CHOICES).contains(&options.n) {
            let message = format!("`n` is {}: use 1 to {MAX_CHOICES}", options.n);
            return Err(ApiError::invalid("n", message));
        }
        if let Some(stop) = body.get("stop") {
            if stop.get().len() > MAX_STOP_BYTES {
                let message = format!("`stop` has more than {MAX_STOP_BYTES} bytes");
                return Err(ApiError::invalid("stop", message));
            }
            options.stops = reading::texts::<MAX_STOPS>(stop, "stop")?;
            options.stops.retain(|stop| !stop.is_empty());
        }
        let limits = [("max_tokens", options.max_tokens), ("max_completion_tokens", options.max_completion_tokens)];
        if let Some((name, _)) = limits.iter().find(|(_, limit)| limit.is_some_and(|value| value < -1)) {
            return Err(ApiError::invalid(
                *name,
                format!("`{name}` is negative: only -1 is allowed, and means no limit"),
            ));
        }
        if let (Some(limit), Some(other)) = (options.max_completion_tokens, options.max_tokens)
            && limit != other
        {
            return Err(ApiError::given_twice("max_tokens", "max_completion_tokens"));
        }
        options.biases = match body.get("logit_bias") {
            None => Vec::new(),
            // In llama-server's form, `logit_bias` is a list.
            Some(list) if list.get().starts_with('[') => reading::value::<List<_, MAX_BIASES>>(list, "logit_bias")?.0,
            Some(object) => {
                let Entries::<f32, MAX_BIASES>(biases) = reading::value(object, "logit_bias")?;
                let read = biases.into_iter().map(|(token, bias)| {
                    let place = format!("logit_bias.{token}");
                    let wrong = |_| ApiError::invalid(&place, format!("{place}: a token is an integer"));
                    Ok((token.parse().map_err(wrong)?, bias))
                });
                read.collect::<Result<_, ApiError>>()?
            }
        };
        let List::<i32, MAX_STOPS>(stop_tokens) = body.read("stop_token_ids")?.unwrap_or_default();
        let List::<Entry, MAX_ADAPTERS>(lora) = body.read("lora")?.unwrap_or_default();
        (options.stop_tokens, options.lora) = (stop_tokens, lora);
        options.aliases = body.aliases().to_vec();
        if let Some((form, constraint)) = form::read(body)? {
            options.form = form;
            options.constraint = Some(constraint);
        }
        Ok(options)
    }

    /// The maximum number of tokens; `None` without a limit.
    pub(super) fn max_tokens(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens).and_then(|limit| usize::try_from(limit).ok())
    }

    /// The strings that end the text.
    pub(super) fn stops(&self) -> &[String] {
        &self.stops
    }

    /// The error of a failed generation, with the request's parameter names. `media` contains the places of its
    /// pictures and sounds.
    pub(super) fn error(&self, error: &Error, prompt: &str, media: &[String]) -> ApiError {
        let mut said = ApiError::of_media(error, media, prompt);
        if let (Error::Constraint { place, .. }, false) = (error, self.form.is_empty())
            && place.is_empty()
        {
            said.param = Some(self.form.to_owned());
        }
        reading::in_its_words(said, &self.aliases)
    }
    /// The seed of one of the answers; each answer has its own. Any integer is a seed, except for -1, which llama.cpp
    /// reads as `u32::MAX` and replaces by a random seed.
    fn seed(&self, index: usize) -> Option<u32> {
        let seed = self.seed.map(|seed| seed as u32).filter(|seed| *seed != u32::MAX)?;
        Some(((u64::from(seed) + index as u64) % u64::from(u32::MAX)) as u32)
    }

    /// What happens when a text fills its context. The server's setting applies, but the request decides how many
    /// tokens are kept.
    pub(super) fn when_full(&self, of_server: WhenFull) -> WhenFull {
        match (of_server, self.n_keep) {
            // Here -1 means the whole prompt.
            (WhenFull::Shift { .. }, Some(keep)) => {
                WhenFull::Shift { keep: usize::try_from(keep).unwrap_or(usize::MAX) }
            }
            _ => of_server,
        }
    }

    /// Applies all options to one of the answers.
    pub(super) fn apply(&self, mut generate: GenerateRequest, index: usize) -> GenerateRequest {
        if let Some(tokens) = self.max_tokens() {
            generate = generate.max_tokens(tokens);
        }
        if let Some(seed) = self.seed(index) {
            generate = generate.seed(seed);
        }
        if let Some(cache) = self.cache_prompt {
            generate = generate.cache_prompt(cache);
        }
        for stop in &self.stops {
            generate = generate.stop(stop);
        }
        for token in &self.stop_tokens {
            generate = generate.stop_token(*token);
        }
        if self.ignore_eos {
            generate = generate.ignore_eos();
        }
        generate = generate.min_tokens(self.min_tokens);
        if let Some(constraint) = &self.constraint {
            generate = generate.constraint(constraint.clone());
        }
        self.biases.iter().fold(generate, |generate, (token, bias)| generate.logit_bias(*token, *bias))
    }
}

/// The sampling parameters of the request. A parameter that the request does not set has the model's own value.
/// `context` is the number of tokens in the context.
pub(super) fn sampling(own: &Sampling, body: &Body<'_>, context: u32) -> Result<Sampling, ApiError> {
    // `Options` reads these two, because `seed` may be any integer and `logit_bias` may be a map.
    let mut read_elsewhere = vec!["seed", "logit_bias"];
    let mut own = own.clone();
    for name in ["top_k", "repeat_last_n", "dry_penalty_last_n", "mirostat"] {
        if body.get(name).is_some_and(|number| set_by_number(&mut own, name, number.get(), context)) {
            read_elsewhere.push(name);
        }
    }
    if body.get("repetition_penalty").is_some() && body.get("repeat_last_n").is_none() {
        // vLLM's penalty applies to all tokens of the text, and not only to the last ones.
        own.repeat_last_n = context;
    }
    let own =
        serde_json::to_vec(&own).map_err(|_| ApiError::new(500, "the model's sampling parameters are not JSON"))?;
    let sampling: Sampling = body.over(reading::object(&own)?, &read_elsewhere)?.part()?;
    // The number of entries is limited, because each entry costs time for every token, or needs time for the whole
    // vocabulary.
    for (name, entries) in [
        ("samplers", sampling.samplers.len()),
        ("dry_sequence_breakers", sampling.dry_sequence_breakers.len()),
        ("logit_bias_text", sampling.logit_bias_text.len()),
    ] {
        if entries > MAX_ENTRIES {
            let message = format!("`{name}` has {entries} entries: at most {MAX_ENTRIES} are allowed");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(sampling)
}

/// Sets a parameter whose number has a special meaning in llama-server or vLLM. Returns whether this number has such a
/// meaning.
fn set_by_number(sampling: &mut Sampling, name: &str, number: &str, context: u32) -> bool {
    match (name, number) {
        ("top_k", "-1") => sampling.top_k = 0,
        ("repeat_last_n", "-1") => sampling.repeat_last_n = context,
        ("dry_penalty_last_n", "-1") => sampling.dry_penalty_last_n = context,
        ("mirostat", "0") => sampling.mirostat = Mirostat::Off,
        ("mirostat", "1") => sampling.mirostat = Mirostat::V1,
        ("mirostat", "2") => sampling.mirostat = Mirostat::V2,
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with<T>(value: &Value, read: impl Fn(&Body<'_>) -> T) -> T {
        let text = value.to_string();
        read(&reading::object(text.as_bytes()).unwrap())
    }

    fn options(value: Value) -> Result<Options, ApiError> {
        with(&value, Options::read)
    }

    #[test]
    fn the_request_wins_over_the_model() {
        let mut own = Sampling::default();
        (own.temperature, own.top_k) = (0.6, 20);
        let sampling = |asked: Value| with(&asked, |body| sampling(&own, body, 512));
        let merged = sampling(
            json!({"temperature": 0, "min_p": 0.1, "seed": -1, "logit_bias": {"3": 1}, "top_p": null, "unknown": []}),
        );
        let mut expected = own.clone();
        (expected.temperature, expected.min_p) = (0.0, 0.1);
        assert_eq!(merged.unwrap(), expected);
        let by_number = |mirostat| {
            let all = json!({"top_k": -1, "repeat_last_n": -1, "dry_penalty_last_n": -1, "mirostat": mirostat});
            let all = sampling(all).unwrap();
            ((all.top_k, all.repeat_last_n, all.dry_penalty_last_n), all.mirostat)
        };
        for (number, mirostat) in [(0, Mirostat::Off), (1, Mirostat::V1), (2, Mirostat::V2)] {
            assert_eq!(by_number(number), ((0, 512, 512), mirostat));
        }
        assert_eq!(sampling(json!({"mirostat": "v2"})).unwrap().mirostat, Mirostat::V2);
        assert!(sampling(json!({"samplers": vec!["top_k"; 64], "dry_sequence_breakers": vec!["a"; 64]})).is_ok());
    }

    #[test]
    fn stops_are_a_text_or_a_list_and_answers_are_counted() {
        let stops = |value: Value| options(json!({"stop": value})).map(|options| options.stops);
        assert_eq!(stops(json!("a")).unwrap(), ["a"]);
        assert_eq!(stops(json!(["a", "", "b"])).unwrap(), ["a", "b"]);
        assert!(stops(Value::Null).unwrap().is_empty());
        let given = json!({"n": null, "seed": 4_294_967_294_u32, "stream_options": {"include_usage": null}});
        let given = options(given).unwrap();
        assert_eq!((given.n, [0, 1, 2].map(|index| given.seed(index))), (1, [Some(u32::MAX - 1), Some(0), Some(1)]));
        assert_eq!(options(json!({"seed": -1})).unwrap().seed(2), None);
    }

    #[test]
    fn one_limit_under_two_names_has_one_value() {
        let limits = |one: i64, other: i64| options(json!({"max_tokens": one, "max_completion_tokens": other}));
        assert!(limits(5, 5).is_ok());
        let error = limits(5, 6).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("max_tokens"));
        assert!(error.message.contains("`max_completion_tokens`"), "{error}");
    }

    #[test]
    fn each_token_has_one_bias_and_few_tokens_have_any() {
        let biases = |count: usize| {
            let biases: Vec<String> = (0..count).map(|token| format!("\"{token}\": 1")).collect();
            let body = format!("{{\"logit_bias\": {{{}}}}}", biases.join(","));
            Options::read(&reading::object(body.as_bytes()).unwrap())
        };
        assert_eq!(biases(4096).unwrap().biases.len(), 4096);
        let list = |list| options(json!({"logit_bias": list})).unwrap().biases;
        assert_eq!((list(json!([])), list(json!([[7, 1], [8, -0.5]]))), (vec![], vec![(7, 1.0), (8, -0.5)]));
        let error = biases(4097).unwrap_err();
        assert_eq!(error.message, "logit_bias: at most 4096 names are allowed");
        let twice = reading::object(br#"{"logit_bias": {"7": 1, "7": 2}}"#).unwrap();
        assert_eq!(Options::read(&twice).unwrap_err().message, "logit_bias: `7` is named twice");
    }

    #[test]
    fn a_grammar_comes_before_a_schema_and_an_empty_one_is_none() {
        let constraint = |value| options(value).unwrap().constraint;
        assert_eq!(constraint(json!({"grammar": ""})), None);
        let lark = "%llguidance {}\nstart: \"a\"";
        assert_eq!(constraint(json!({"grammar": lark, "json_schema": {}})), Some(Constraint::lark(lark)));
        let gbnf = "root ::= \"a\"";
        assert_eq!(constraint(json!({"grammar": gbnf})), Some(Constraint::gbnf(gbnf)));
        let only = json!({"type": "null"});
        let held = |place: &str| Some(Constraint::json_schema(only.clone()).at(place));
        assert_eq!(constraint(json!({"json_schema": only})), held("json_schema"));
        let form = |form: Value| options(json!({"response_format": form})).map(|options| options.constraint);
        for kind in ["json_object", "json_schema"] {
            assert_eq!(form(json!({"type": kind, "schema": only})).unwrap(), held("response_format.schema"));
            let within = form(json!({"type": kind, "json_schema": {"schema": only}})).unwrap();
            assert_eq!(within, held("response_format.json_schema.schema"));
        }
        let any = Some(Constraint::json_object().at("response_format"));
        assert_eq!(form(json!({"type": "json_object", "schema": null})).unwrap(), any);
        assert_eq!((form(json!({"type": "text"})).unwrap(), form(json!({})).unwrap()), (None, None));
    }
}
