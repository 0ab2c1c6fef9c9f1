//! For every seed, tool calls that are required and answers with a schema are valid.

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace::gguf::Header;
use autoplace_openai::Api;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::rows::{Outcome, Row};
use crate::setting::{Setting, THREADS};

/// How many seeds are used for each tool and each schema.
const SEEDS: usize = 50;

/// How many answers are generated at once, and the context of each answer, in tokens.
const PARALLEL: u32 = 8;
const N_CTX: u32 = 1024;

/// Templates that list tools. The two models' own templates do not list them. The model must use the call formats that
/// these templates describe.
const TOOL_TEMPLATES: [(&str, &str); 2] = [
    ("ChatML", include_str!("tools.jinja")),
    ("Llama 3", include_str!("../../../chat/tests/chat_templates/families/llama-3-tools.jinja")),
];

/// Schemas that limit the length of the answer.
fn schemas_to_meet() -> Vec<(&'static str, Value)> {
    let text = |most: u32| json!({"type": "string", "maxLength": most});
    vec![
        (
            "an object",
            json!({
                "type": "object", "additionalProperties": false, "required": ["name", "age", "is_member"],
                "properties": {
                    "name": text(24), "age": {"type": "integer", "minimum": 0, "maximum": 130}, "is_member": {"type": "boolean"},
                },
            }),
        ),
        (
            "nested objects and lists",
            json!({
                "type": "object", "additionalProperties": false, "required": ["title", "steps", "author"],
                "properties": {
                    "title": text(20),
                    "steps": {
                        "type": "array", "minItems": 1, "maxItems": 3,
                        "items": {
                            "type": "object", "additionalProperties": false, "required": ["what"],
                            "properties": {"what": text(16), "minutes": {"type": "integer", "minimum": 0, "maximum": 60}},
                        },
                    },
                    "author": {"anyOf": [{"type": "null"}, text(12)]},
                },
            }),
        ),
        (
            "enums, constants and patterns",
            json!({
                "type": "object", "additionalProperties": false, "required": ["kind", "day", "code"],
                "properties": {
                    "kind": {"const": "visit"}, "day": {"enum": ["monday", "friday", "日曜日", 7, null]},
                    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                },
            }),
        ),
        (
            "a list of numbers",
            json!({"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 99}, "minItems": 2, "maxItems": 5}),
        ),
    ]
}

/// Tools whose arguments have different types.
fn tools_to_call() -> Vec<Value> {
    let tool = |name: &str, what: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": what, "parameters": parameters}});
    let city = json!({"type": "string", "maxLength": 24});
    let number = json!({"type": "integer", "minimum": -999, "maximum": 999});
    vec![
        tool(
            "get_weather",
            "The weather in a city",
            json!({
                "type": "object", "additionalProperties": false, "required": ["city"],
                "properties": {"city": city, "unit": {"enum": ["celsius", "fahrenheit"]}},
            }),
        ),
        tool(
            "add",
            "Adds numbers",
            json!({
                "type": "object", "additionalProperties": false, "required": ["numbers"],
                "properties": {"numbers": {"type": "array", "items": number, "minItems": 1, "maxItems": 4}},
            }),
        ),
        tool("now", "The time", json!({"type": "object", "additionalProperties": false, "properties": {}})),
    ]
}

/// A question that can be answered by a call, or by a value of a schema.
fn messages() -> Value {
    json!([{"role": "user", "content": "What is the weather in Paris, and how much is 12 and 30?"}])
}

/// Requires a call of each tool, and then a call of any of them.
pub(crate) fn calls(setting: &Setting) -> Outcome<Vec<Row>> {
    let tools = tools_to_call();
    let mut rows = Vec::new();
    let mut choices = vec![("any of three tools".to_owned(), json!("required"))];
    choices.extend(tools.iter().map(|tool| {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        (format!("the tool {name}"), json!({"type": "function", "function": {"name": name}}))
    }));
    let named = |choice: &Value| choice["function"]["name"].as_str().map(str::to_owned);
    let header = Header::open(&setting.path)?;
    let loaded = load(setting)?;
    for ((what, choice), (format, source)) in
        choices.iter().flat_map(|choice| TOOL_TEMPLATES.map(|template| (choice, template)))
    {
        let ask = json!({"messages": messages(), "tools": tools, "tool_choice": choice});
        let template = ChatTemplate::from_source(source, &header)?;
        let failures = of_all_seeds(&loaded, seeds(setting), template, &ask, |answer| {
            let calls = answer["message"]["tool_calls"].as_array().ok_or("there is no call")?;
            if answer["finish_reason"] != "tool_calls" {
                return Err(format!("it ended with {}", answer["finish_reason"]));
            }
            for call in calls {
                let (name, text) = (&call["function"]["name"], call["function"]["arguments"].as_str());
                let tool = tools.iter().find(|tool| tool["function"]["name"] == *name).ok_or("no such tool")?;
                if named(choice).is_some_and(|wanted| *name != wanted) {
                    return Err(format!("{name} was called"));
                }
                meets(&tool["function"]["parameters"], text.ok_or("the arguments are no text")?)?;
            }
            if calls.is_empty() { Err("there is no call".into()) } else { Ok(()) }
        })?;
        rows.push(valid(&format!("{what}, as {format} calls"), seeds(setting), failures));
    }
    Ok(rows)
}

/// Generates an answer for each schema.
pub(crate) fn schemas(setting: &Setting) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let loaded = load(setting)?;
    for (what, schema) in schemas_to_meet() {
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}});
        let ask = json!({"messages": messages(), "response_format": format});
        let failures = of_all_seeds(&loaded, seeds(setting), setting.template()?, &ask, |answer| {
            if answer["finish_reason"] != "stop" {
                return Err(format!("it ended with {}", answer["finish_reason"]));
            }
            meets(&schema, answer["message"]["content"].as_str().ok_or("there is no content")?)
        })?;
        rows.push(valid(what, seeds(setting), failures));
    }
    Ok(rows)
}

/// A model that can answer several requests at once.
fn load(setting: &Setting) -> Outcome<(Model, Engine)> {
    let model = Model::builder(&setting.path).parallel(PARALLEL, N_CTX).n_threads(THREADS).load()?;
    let engine = Engine::new(&model)?;
    Ok((model, engine))
}

fn seeds(setting: &Setting) -> usize {
    if setting.is_whole() { SEEDS } else { SEEDS / 10 }
}

fn valid(what: &str, seeds: usize, failures: Vec<String>) -> Row {
    let result = format!("{seeds} seeds, {} not valid", failures.len());
    Row { failures, ..Row::new(what).result(result) }
}

/// The faults that were found in the answers to one request, for all seeds.
fn of_all_seeds(
    (model, engine): &(Model, Engine),
    seeds: usize,
    template: ChatTemplate,
    ask: &Value,
    judge: impl Fn(&Value) -> Result<(), String> + Sync,
) -> Outcome<Vec<String>> {
    let api = Api::new(model, engine, "real").template(template);
    let answer = |seed: usize| -> Result<(), String> {
        let mut body = ask.clone();
        body["model"] = "real".into();
        body["seed"] = seed.into();
        body["temperature"] = 1.0.into();
        let completion = api.chat(body.to_string().as_bytes()).map_err(|error| error.to_string())?;
        let answer = completion.wait().map_err(|error| error.to_string())?;
        let choice = &answer["choices"][0];
        judge(choice).map_err(|why| format!("{why}: {choice}"))
    };
    let all: Vec<usize> = (1..=seeds).collect();
    let of_one_thread = |seeds: &[usize]| -> Vec<String> {
        let answers = seeds.iter().map(|&seed| (seed, answer(seed)));
        answers.filter_map(|(seed, outcome)| Some(format!("seed {seed}: {}", outcome.err()?))).collect()
    };
    let of_one_thread = &of_one_thread;
    std::thread::scope(|scope| {
        let per_thread = all.len().div_ceil(PARALLEL as usize).max(1);
        let threads: Vec<_> = all.chunks(per_thread).map(|seeds| scope.spawn(move || of_one_thread(seeds))).collect();
        let failures = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread has panicked"));
        Ok(failures.collect::<Result<Vec<_>, _>>()?.concat())
    })
}

/// Whether a text is JSON that satisfies a schema.
fn meets(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error} in {text:?}"))?;
    let validator: Validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    validator.validate(&value).map_err(|error| format!("{error} in {text:?}"))
}
