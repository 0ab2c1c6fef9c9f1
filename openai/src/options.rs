//! What requests for chats and for completions have in common: how a text is generated, and how it is sent.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::reading;
use autoplace::generate::{Constraint, Generate, Sampling};

/// Answers of one request at most, over all its prompts.
pub(super) const MOST_CHOICES: usize = 128;
const MOST_STOPS: usize = 32;
/// Entries of a list of sampling parameters at most.
const MOST_ENTRIES: usize = 64;

/// Parameters of both endpoints.
#[derive(Debug, Deserialize)]
pub(super) struct Options {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    pub(super) stream_options: StreamOptions,
    #[serde(default = "one")]
    pub(super) n: usize,
    stop: Option<Value>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    seed: Option<i64>,
    #[serde(default)]
    logit_bias: Map<String, Value>,
    cache_prompt: Option<bool>,
    grammar: Option<String>,
    json_schema: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

fn one() -> usize {
    1
}

impl Options {
    pub(super) fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let options: Self = reading::part(body)?;
        if !(1..=MOST_CHOICES).contains(&options.n) {
            let message = format!("`n` is {}: 1 to {MOST_CHOICES} can be", options.n);
            return Err(ApiError::invalid("n", message));
        }
        Ok(options)
    }

    /// Tells a generation all of it. `index`: which of the answers it is, so that each has a seed of its own.
    pub(super) fn apply(&self, mut generate: Generate, index: usize) -> Result<Generate, ApiError> {
        if let Some(tokens) = self.max_completion_tokens.or(self.max_tokens) {
            generate = generate.max_tokens(tokens);
        }
        if let Some(seed) = self.seed {
            // Any integer is a seed; those that llama.cpp has are their own.
            generate = generate.seed((seed as u32).wrapping_add(index as u32));
        }
        if let Some(cache) = self.cache_prompt {
            generate = generate.cache_prompt(cache);
        }
        for stop in self.stops()? {
            generate = generate.stop(stop);
        }
        for (token, bias) in &self.logit_bias {
            let place = format!("logit_bias.{token}");
            let number = token.parse().map_err(|_| {
                let message = format!("{place}: a token is an integer");
                ApiError::invalid(&place, message)
            })?;
            let bias = reading::value(bias, &place)?;
            generate = generate.logit_bias(number, bias);
        }
        Ok(generate)
    }

    fn stops(&self) -> Result<Vec<String>, ApiError> {
        let stops: Vec<String> = match &self.stop {
            None => Vec::new(),
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(stops) => reading::value(stops, "stop")?,
        };
        if stops.len() > MOST_STOPS {
            let message = format!("`stop` has {} texts: {MOST_STOPS} are the most", stops.len());
            return Err(ApiError::invalid("stop", message));
        }
        Ok(stops)
    }

    /// What llama.cpp's own parameters hold the text to.
    pub(super) fn constraint(&self) -> Option<Constraint> {
        match (&self.grammar, &self.json_schema) {
            (Some(grammar), _) if !grammar.is_empty() => Some(Constraint::gbnf(grammar)),
            (_, Some(schema)) => Some(Constraint::json_schema(schema.clone())),
            _ => None,
        }
    }
}

/// The model's own sampling parameters, and over them those of the request, by their names.
pub(super) fn sampling(own: &Sampling, body: &Map<String, Value>) -> Result<Sampling, ApiError> {
    // Integers of any size, and a map: see `Options`.
    const READ_ELSEWHERE: [&str; 2] = ["seed", "logit_bias"];
    let Ok(Value::Object(mut merged)) = serde_json::to_value(own) else {
        return Err(ApiError::new(500, "the model's sampling parameters are no JSON"));
    };
    for (name, value) in &mut merged {
        match body.get(name) {
            Some(given) if !given.is_null() && !READ_ELSEWHERE.contains(&&**name) => {
                value.clone_from(given);
            }
            _ => {}
        }
    }
    let sampling: Sampling = reading::value(&Value::Object(merged), "")?;
    // Each entry costs its part of every token, or of the vocabulary.
    for (name, entries) in [
        ("samplers", sampling.samplers.len()),
        ("dry_sequence_breakers", sampling.dry_sequence_breakers.len()),
        ("logit_bias_text", sampling.logit_bias_text.len()),
    ] {
        if entries > MOST_ENTRIES {
            let message = format!("`{name}` has {entries} entries: {MOST_ENTRIES} are the most");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_request_wins_over_the_model_and_names_what_is_wrong() {
        let mut own = Sampling::default();
        (own.temperature, own.top_k) = (0.6, 20);
        let asked = json!({"temperature": 0, "min_p": 0.1, "seed": -1, "logit_bias": {"3": 1}, "top_p": null, "unknown": []});
        let merged = sampling(&own, &body(&asked)).unwrap();
        let mut expected = own.clone();
        (expected.temperature, expected.min_p) = (0.0, 0.1);
        assert_eq!(merged, expected);
        let error = sampling(&own, &body(&json!({"temperature": "hot"}))).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("temperature"));
        for (name, entry) in [("samplers", "top_k"), ("dry_sequence_breakers", "a")] {
            let many = |entries| sampling(&own, &body(&json!({name: vec![entry; entries]})));
            assert!(many(64).is_ok());
            assert_eq!(many(65).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn stops_are_a_text_or_a_list_and_answers_are_counted() {
        let read = |value: Value| Options::read(&body(&value));
        let stops = |value: Value| read(json!({"stop": value})).unwrap().stops();
        assert_eq!(stops(json!("a")).unwrap(), ["a"]);
        assert_eq!(stops(json!(["a", "b"])).unwrap(), ["a", "b"]);
        assert!(stops(Value::Null).unwrap().is_empty());
        let error = stops(json!(["a", 1])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("stop[1]"));
        assert!(stops(json!(vec!["a"; 33])).is_err());
        for n in [json!(0), json!(129), json!(-1), json!(1.5)] {
            assert_eq!(read(json!({"n": n})).unwrap_err().param.as_deref(), Some("n"));
        }
        assert_eq!(read(json!({"n": null})).unwrap().n, 1);
    }

    #[test]
    fn a_grammar_comes_before_a_schema_and_an_empty_one_is_none() {
        let constraint = |value| Options::read(&body(&value)).unwrap().constraint();
        assert_eq!(constraint(json!({"grammar": ""})), None);
        let gbnf = "root ::= \"a\"";
        assert_eq!(
            constraint(json!({"grammar": gbnf, "json_schema": {}})),
            Some(Constraint::gbnf(gbnf))
        );
        assert_eq!(
            constraint(json!({"json_schema": {"type": "null"}})),
            Some(Constraint::json_schema(json!({"type": "null"})))
        );
    }
}
