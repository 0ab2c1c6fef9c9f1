//! `tool_choice` in the three APIs. For every choice, the prompt shows the same tools, so that it is found in the
//! cache.

use autoplace::chat::ChatTemplate;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};

/// A template that shows no tools, and a template that shows tools and describes a call format.
const TEXTS: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
const HERMES: &str = "{{ tools }}{# <tool_call> {\"name\" #}{{ messages[-1].content }}";
/// A call in the model's format.
const CALL: &str = "<tool_call>\n{\"name\": \"walk\", \"arguments\": {\"days\": 3}}\n</tool_call>";

fn server(source: &str) -> Server {
    Server::start(2048, ChatTemplate::new(source, <_>::default()).unwrap())
}

/// The three APIs.
#[derive(Debug, Clone, Copy)]
enum Surface {
    Chat,
    Responses,
    Messages,
}

impl Surface {
    const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    fn counts(self) -> String {
        match self {
            Self::Messages => format!("{}/count_tokens", self.path()),
            _ => format!("{}/input_tokens", self.path()),
        }
    }

    /// A request with two tools.
    fn asked(self, choice: &Value, limit: usize) -> Value {
        let schema = json!({"type": "object",
            "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 7}}, "required": ["days"]});
        let tool = |name: &str| match self {
            Self::Chat => {
                json!({"type": "function", "function": {"name": name, "description": "Walks.", "parameters": schema}})
            }
            Self::Responses => {
                json!({"type": "function", "name": name, "description": "Walks.", "parameters": schema})
            }
            Self::Messages => json!({"name": name, "description": "Walks.", "input_schema": schema}),
        };
        let mut body = json!({"model": MODEL, "temperature": 0, "tools": [tool("walk"), tool("run")]});
        let said = json!([{"role": "user", "content": "In the beginning"}]);
        match self {
            Self::Responses => (body["input"], body["max_output_tokens"]) = (said, limit.into()),
            _ => (body["messages"], body["max_tokens"]) = (said, limit.into()),
        }
        body["tool_choice"] = match self {
            Self::Messages if choice.is_string() => json!({"type": choice}),
            _ => choice.clone(),
        };
        body
    }

    /// How many tokens the prompt has, and how many of these came from the cache.
    fn used(self, answer: &Value) -> (u64, u64) {
        let of =
            |path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {answer}"));
        match self {
            Self::Chat => (of("/usage/prompt_tokens"), of("/usage/prompt_tokens_details/cached_tokens")),
            Self::Responses => (of("/usage/input_tokens"), of("/usage/input_tokens_details/cached_tokens")),
            Self::Messages => {
                let cached = of("/usage/cache_read_input_tokens");
                (of("/usage/input_tokens") + cached, cached)
            }
        }
    }

    /// Choices of tools, in this API's form.
    fn choices(self) -> Vec<Value> {
        let allowed = |mode: &str| match self {
            Self::Chat => json!({"type": "allowed_tools", "allowed_tools":
                {"mode": mode, "tools": [{"type": "function", "function": {"name": "run"}}]}}),
            _ => json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "run"}]}),
        };
        let named = match self {
            Self::Chat => json!({"type": "function", "function": {"name": "run"}}),
            Self::Responses => json!({"type": "function", "name": "run"}),
            Self::Messages => json!({"type": "tool", "name": "run"}),
        };
        match self {
            Self::Messages => vec![json!("none"), json!("any"), named],
            _ => vec![json!("none"), json!("required"), named, allowed("auto"), allowed("required")],
        }
    }
}

#[test]
fn the_prompt_is_the_same_for_every_tool_choice_and_stays_cached() {
    for source in [TEXTS, HERMES] {
        let server = server(source);
        for surface in Surface::ALL {
            let auto = surface.asked(&json!("auto"), 1);
            let (tokens, _) = surface.used(&server.post(surface.path(), &auto));
            for choice in surface.choices() {
                let body = surface.asked(&choice, 1);
                let counted = server.post(&surface.counts(), &body)["input_tokens"].clone();
                let answer = server.post(surface.path(), &body);
                let (used, cached) = surface.used(&answer);
                assert_eq!((used, counted.as_u64()), (tokens, Some(tokens)), "{surface:?} {choice}");
                // The last token of a prompt is always computed again.
                assert!(cached + 1 >= tokens, "{surface:?} {choice}: {cached} of {tokens} tokens");
            }
        }
        let prompt = |choice: &Value| {
            server.post("/apply-template", &Surface::Chat.asked(choice, 1))["prompt"].as_str().unwrap().to_owned()
        };
        let shown = prompt(&json!("auto"));
        assert!(shown.contains("walk") && shown.contains("run"), "{shown}");
        for choice in Surface::Chat.choices() {
            assert_eq!(prompt(&choice), shown);
        }
    }
}

#[test]
fn a_call_that_is_written_although_none_may_be_is_the_answer_s_text() {
    let server = server(HERMES);
    for surface in Surface::ALL {
        let mut body = surface.asked(&json!("none"), 200);
        // With this grammar, the model can write only this call.
        body["grammar"] = format!("root ::= {}", serde_json::to_string(CALL).unwrap()).into();
        let answer = server.post(surface.path(), &body);
        let (text, finish, others) = match surface {
            Surface::Chat => {
                let choice = &answer["choices"][0];
                (&choice["message"]["content"], &choice["finish_reason"], &choice["message"]["tool_calls"])
            }
            Surface::Responses => (&answer["output"][0]["content"][0]["text"], &answer["status"], &answer["output"][1]),
            Surface::Messages => (&answer["content"][0]["text"], &answer["stop_reason"], &answer["content"][1]),
        };
        assert_eq!((text.as_str(), others), (Some(CALL), &Value::Null), "{surface:?}: {answer}");
        assert!(["stop", "completed", "end_turn"].contains(&finish.as_str().unwrap()), "{surface:?}: {answer}");
    }
}

#[test]
fn only_allowed_tools_are_called() {
    let server = server(HERMES);
    for surface in [Surface::Chat, Surface::Responses] {
        let choice = surface.choices().pop().unwrap();
        let answer = server.post(surface.path(), &surface.asked(&choice, 100));
        let name = match surface {
            Surface::Chat => &answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
            _ => &answer["output"][0]["name"],
        };
        assert_eq!(name, "run", "{surface:?}: {answer}");
    }
    // If a form is requested, the answer is either a call of an allowed tool or a text of the form. With `none`, it is
    // always a text of the form.
    let form = json!({"type": "json_schema", "json_schema": {"name": "f", "schema": {"const": 3}}});
    let mut body = Surface::Chat.asked(&json!("none"), 100);
    body["response_format"] = form;
    let answer = server.post(Surface::Chat.path(), &body);
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap().trim(), "3", "{answer}");
}
