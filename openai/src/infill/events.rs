//! The answer in llama-server's own form, as a whole or as events.

use serde_json::{Value, json};

use super::request::{Asked, InfillRequest};
use crate::choice::Step;
use crate::shape::Frame;
use crate::timings;
use autoplace::chat::ReplyPart;
use autoplace::generate::{FinishReason, Statistics};

/// Writes the events of one answer. In a stream, each event contains a piece of the text, and the last event contains
/// everything else. If there is no stream, one event contains the whole text and everything else.
#[derive(Debug)]
pub(crate) struct InfillEvents {
    frame: Frame,
    asked: Asked,
    /// The text that no event has contained yet.
    content: String,
    has_new_line: bool,
    has_ended: bool,
}

impl InfillEvents {
    pub(crate) fn new(frame: Frame, request: &mut InfillRequest) -> Self {
        let asked = std::mem::take(&mut request.asked);
        Self { frame, asked, content: String::new(), has_new_line: false, has_ended: false }
    }

    /// The events of a step.
    pub(crate) fn step(&mut self, step: &Step, statistics: &Statistics) -> Vec<Value> {
        for part in &step.parts {
            if let ReplyPart::Content(text) = part {
                self.content.push_str(text);
                self.has_new_line |= text.contains('\n');
            }
        }
        let mut events = Vec::new();
        if self.asked.is_stream && !self.content.is_empty() {
            let content = std::mem::take(&mut self.content);
            events.push(json!({
                "index": 0, "content": content, "tokens": [], "stop": false, "id_slot": -1,
                "tokens_predicted": statistics.generated_tokens, "tokens_evaluated": statistics.prompt_tokens,
            }));
        }
        if step.finish.is_some() {
            let (kind, word) = match (step.end, step.stop_string) {
                (Some(FinishReason::StopString), stop) => {
                    ("word", stop.and_then(|at| self.asked.stops.get(at)).map_or("", String::as_str))
                }
                (Some(FinishReason::EndOfGeneration), _) => ("eos", ""),
                _ => ("limit", ""),
            };
            let word = word.to_owned();
            events.push(self.last(kind, &word, statistics));
        }
        events
    }

    /// The events of an answer that ended without a last step.
    pub(crate) fn end(&mut self, statistics: &Statistics) -> Vec<Value> {
        if self.has_ended { Vec::new() } else { vec![self.last("none", "", statistics)] }
    }

    fn last(&mut self, kind: &str, word: &str, statistics: &Statistics) -> Value {
        self.has_ended = true;
        let (prompt, generated) = (statistics.prompt_tokens, statistics.generated_tokens);
        let Asked { prompt: written, is_cut, settings, fields, .. } = std::mem::take(&mut self.asked);
        let whole = json!({
            "index": 0, "content": std::mem::take(&mut self.content), "tokens": [], "id_slot": -1, "stop": true,
            "model": self.frame.model, "tokens_predicted": generated, "tokens_evaluated": prompt,
            "generation_settings": settings, "prompt": written, "has_new_line": self.has_new_line,
            "truncated": is_cut, "stop_type": kind, "stopping_word": word, "tokens_cached": prompt + generated,
            "timings": timings::json(statistics),
        });
        if fields.is_empty() {
            return whole;
        }
        let found = fields.into_iter().filter_map(|path| {
            let value = path.split('/').try_fold(&whole, |value, name| value.get(name))?.clone();
            Some((path, value))
        });
        found.collect()
    }
}
