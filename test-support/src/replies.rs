//! The same answer in every format (`replies.txt`), as the format's templates write it. The answer consists of
//! reasoning, content and two calls.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// An answer and its meaning.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The format's name.
    pub name: &'static str,
    /// A text that occurs in the format's templates.
    pub template: String,
    /// The end of the prompt before the answer.
    pub prompt: String,
    pub text: &'static str,
    pub reasoning: Option<&'static str>,
    pub content: &'static str,
    pub ids: [Option<&'static str>; 2],
}

pub static SAMPLES: LazyLock<Vec<Sample>> =
    LazyLock::new(|| include_str!("replies.txt").split("\n## ").skip(1).map(Sample::read).collect());

impl Sample {
    fn read(section: &'static str) -> Self {
        let (head, text) = section.split_once("\ntext:\n").expect(section);
        let (name, stated) = head.split_once('\n').expect(head);
        let of = |key: &str| stated.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let lacks = |part| of("lacks").is_some_and(|parts| parts.split(' ').any(|lacking| lacking == part));
        let (first, second) = of("ids").and_then(|ids| ids.split_once(' ')).unzip();
        Self {
            name,
            template: of("template").expect(head).replace(r"\n", "\n"),
            prompt: of("prompt").unwrap_or(r"<|im_start|>assistant\n").replace(r"\n", "\n"),
            text: text.strip_suffix('\n').expect(text),
            reasoning: (!lacks("reasoning")).then_some("First the weather,\nthen a note."),
            content: if lacks("content") { "" } else { "Let me look." },
            ids: [first, second],
        }
    }
}

/// The tools that every sample calls, in this order. `tool` makes a tool from its name, description and parameters.
pub fn tools<Tool>(tool: impl Fn(&'static str, &'static str, Value) -> Tool) -> Vec<Tool> {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let note = json!({"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}});
    vec![tool("get_weather", "What the weather will be", weather), tool("note", "Writes something down", note)]
}

/// The arguments of the two calls.
pub fn arguments() -> [Value; 2] {
    [json!({"city": "Köln", "days": 3}), json!({"text": "it's \"wet\",\n<b>cold</b>", "tags": ["x", "y"]})]
}
