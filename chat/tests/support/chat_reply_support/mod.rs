//! One answer in every format (`samples.txt`), written like the format's templates: reasoning, content and two calls.

#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::LazyLock;

use autoplace_chat::Tool;
use serde_json::{Value, json};

/// An answer and its meaning.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// The format's name.
    pub(crate) name: &'static str,
    /// Text that occurs in the format's templates.
    pub(crate) template: String,
    /// The end of the prompt before the answer.
    pub(crate) prompt: String,
    pub(crate) text: &'static str,
    pub(crate) reasoning: Option<&'static str>,
    pub(crate) content: &'static str,
    pub(crate) ids: [Option<&'static str>; 2],
}

pub(crate) static SAMPLES: LazyLock<Vec<Sample>> =
    LazyLock::new(|| include_str!("samples.txt").split("\n## ").skip(1).map(Sample::read).collect());

impl Sample {
    fn read(section: &'static str) -> Self {
        let (head, text) = section.split_once("\ntext:\n").expect(section);
        let (name, stated) = head.split_once('\n').expect(head);
        let of = |key: &str| stated.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let lacks = |part| of("lacks").is_some_and(|it| it.split(' ').any(|lacking| lacking == part));
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

/// The tools that every sample calls, in this order.
pub(crate) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "get_weather",
            "What the weather will be",
            json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
        ),
        Tool::new(
            "note",
            "Writes something down",
            json!({"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}}),
        ),
    ]
}

/// The arguments of the two calls.
pub(crate) fn arguments() -> [Value; 2] {
    [json!({"city": "Köln", "days": 3}), json!({"text": "it's \"wet\",\n<b>cold</b>", "tags": ["x", "y"]})]
}
