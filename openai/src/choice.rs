//! One answer of a request, while it is being generated.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::called::CallCheck;
use super::lines::LineLimits;
use super::logprobs::{TokenInfo, TokenTable};
use super::timings::Totals;
use autoplace::chat::{ReplyFormat, ReplyParser, ReplyPart};
use autoplace::generate::{Error, FinishReason, Statistics, TokenStream};

/// How to parse the text.
pub(super) enum Reading {
    /// An answer in a conversation.
    Chat {
        parser: Box<ReplyParser>,
        /// Whether the answer ends with its first tool call.
        one_call: bool,
        /// Whether it is still open what the answer will be (calls, or a text of the form), because none of its text
        /// has arrived.
        is_open: bool,
        /// Whether the answer consists of calls. If a limit cuts a call short, the fragment is not content.
        is_calls: bool,
        check: CallCheck,
    },
    /// Plain text.
    Text,
    /// Plain text that these limits may end after a line.
    Lines(LineLimits),
}

/// One of a request's answers.
pub(super) struct Choice {
    /// The answer's stream; `None` after its end.
    answer: Option<TokenStream>,
    reading: Reading,
    /// The index of the answer's prompt in the request.
    pub(super) prompt: usize,
    pub(super) statistics: Statistics,
    /// The number of tokens of reasoning.
    pub(super) reasoning_tokens: usize,
    /// The number of tokens whose text has not arrived yet.
    pending_tokens: usize,
    /// The texts of tokens, if log-probabilities are requested.
    tokens: Option<Arc<TokenTable>>,
    /// Log-probabilities of tokens whose text has not been passed on yet.
    logprobs: Vec<TokenInfo>,
    has_called: bool,
    totals: Arc<Totals>,
}

impl Drop for Choice {
    fn drop(&mut self) {
        self.totals.add(&self.statistics);
    }
}

/// The results of a step.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) parts: Vec<ReplyPart>,
    pub(super) logprobs: Vec<TokenInfo>,
    /// The finish reason, in the words of the API.
    pub(super) finish: Option<&'static str>,
    /// The engine's finish reason. `None` if this module ended the answer.
    pub(super) end: Option<FinishReason>,
    /// The index of the request's stop string that ended the answer.
    pub(super) stop_string: Option<usize>,
    /// How a call of a `strict` tool violates the tool's schema.
    pub(super) violation: Option<String>,
}

/// Numbers of tokens in an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) prompt: usize,
    /// The number of prompt tokens that came from the cache.
    pub(super) cached: usize,
    pub(super) generated: usize,
    /// The number of generated tokens that are reasoning.
    pub(super) reasoning: usize,
}

impl Choice {
    pub(super) fn tokens(&self) -> Tokens {
        Tokens {
            prompt: self.statistics.prompt_tokens,
            cached: self.statistics.cached_tokens,
            generated: self.statistics.generated_tokens,
            reasoning: self.reasoning_tokens,
        }
    }

    pub(super) fn new(
        answer: TokenStream,
        reading: Reading,
        prompt: usize,
        tokens: Option<Arc<TokenTable>>,
        totals: Arc<Totals>,
    ) -> Self {
        Self {
            totals,
            tokens,
            statistics: answer.statistics(),
            reasoning_tokens: 0,
            pending_tokens: 0,
            answer: Some(answer),
            reading,
            prompt,
            logprobs: Vec::new(),
            has_called: false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.answer.is_none()
    }

    /// The next step that has produced something; `None` after the end.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, Error>>> {
        loop {
            let Some(answer) = &mut self.answer else {
                return Poll::Ready(None);
            };
            let piece = ready!(answer.poll_piece(context));
            let before = self.statistics.generated_tokens;
            self.statistics = answer.statistics();
            let more_tokens = self.statistics.generated_tokens.saturating_sub(before);
            let step = match piece {
                Some(Ok(piece)) => {
                    if let (Some(logprobs), Some(tokens)) = (&piece.logprobs, &self.tokens) {
                        self.logprobs.push(TokenInfo::new(logprobs, tokens));
                    }
                    let end = piece.end;
                    let mut step = self.take(&piece.text, end.map(|end| end.reason));
                    step.stop_string = end.and_then(|end| end.stop_string);
                    self.count(more_tokens, &step.parts);
                    step
                }
                end => {
                    self.answer = None;
                    return Poll::Ready(end.and_then(Result::err).map(Err));
                }
            };
            if !step.parts.is_empty() || step.finish.is_some() {
                return Poll::Ready(Some(Ok(step)));
            }
        }
    }

    /// Counts tokens as reasoning once it is clear that their text is reasoning.
    fn count(&mut self, tokens: usize, parts: &[ReplyPart]) {
        self.pending_tokens += tokens;
        let Some(last) = parts.last() else { return };
        let pending = std::mem::take(&mut self.pending_tokens);
        if matches!(last, ReplyPart::Reasoning(_)) {
            self.reasoning_tokens += pending;
        }
    }

    fn take(&mut self, text: &str, end: Option<FinishReason>) -> Step {
        let mut step = Step::default();
        // Whether a limit on lines has ended the text.
        let mut is_full = false;
        match &mut self.reading {
            Reading::Chat { parser, is_open, is_calls, .. } => {
                if *is_open && let Some(first) = text.trim_start().chars().next() {
                    *is_open = false;
                    *is_calls = first == '<';
                    if !*is_calls {
                        // In a text of the requested form, marks of calls and reasoning belong to the text.
                        **parser = ReplyParser::new(&ReplyFormat::plain());
                    }
                }
                step.parts.extend(parser.push(text));
                if end.is_some() {
                    step.parts.extend(parser.end());
                }
                if *is_calls {
                    step.parts.retain(|part| !matches!(part, ReplyPart::Content(_)));
                }
            }
            Reading::Text | Reading::Lines(_) if text.is_empty() => {}
            Reading::Lines(limits) => match limits.end(text) {
                None => step.parts.push(ReplyPart::Content(text.to_owned())),
                Some(end) => {
                    step.parts.push(ReplyPart::Content(text[..end].to_owned()));
                    is_full = true;
                }
            },
            Reading::Text => step.parts.push(ReplyPart::Content(text.to_owned())),
        }
        let is_call = |part: &ReplyPart| matches!(part, ReplyPart::ToolCall(_));
        let first_call = step.parts.iter().position(is_call);
        self.has_called |= first_call.is_some();
        if let Some(reason) = end {
            self.answer = None;
            step.finish = Some(self.finish(reason));
            step.end = Some(reason);
        }
        if is_full {
            // When the stream is dropped, the engine ends the text.
            self.answer = None;
            (step.finish, step.end) = (Some("length"), None);
        }
        if let (Some(call), Reading::Chat { one_call: true, .. }) = (first_call, &self.reading) {
            // When the stream is dropped, the engine ends the text. So no further text follows.
            step.parts.truncate(call + 1);
            self.answer = None;
            step.finish = Some("tool_calls");
        }
        if let Reading::Chat { check, .. } = &self.reading {
            let calls = step.parts.iter().filter_map(|part| match part {
                ReplyPart::ToolCall(call) => Some(call),
                _ => None,
            });
            for (violation, is_strict) in calls.filter_map(|call| check.violation(call)) {
                tracing::warn!("a call is not what its tool's schema allows: {violation}");
                if is_strict {
                    step.violation.get_or_insert(violation);
                }
            }
        }
        if !step.parts.is_empty() || step.finish.is_some() {
            step.logprobs = std::mem::take(&mut self.logprobs);
        }
        step
    }

    fn finish(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::MaxTokens | FinishReason::ContextFull => "length",
            _ if self.has_called => "tool_calls",
            _ => "stop",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoplace::chat::ToolCallFormat;

    fn choice(one_call: bool) -> Choice {
        let format = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Hermes);
        Choice {
            answer: None,
            reading: Reading::Chat {
                parser: Box::new(ReplyParser::new(&format)),
                one_call,
                is_open: false,
                is_calls: false,
                check: CallCheck::default(),
            },
            prompt: 0,
            statistics: Statistics::default(),
            reasoning_tokens: 0,
            pending_tokens: 0,
            tokens: None,
            logprobs: Vec::new(),
            has_called: false,
            totals: Arc::default(),
        }
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn an_answer_ends_with_its_tool_call() {
        let mut choice = choice(false);
        let step = choice.take(CALL, None);
        assert!(matches!(step.parts[..], [ReplyPart::ToolCall(_)]) && step.finish.is_none());
        let step = choice.take("", Some(FinishReason::EndOfGeneration));
        assert_eq!(step.finish, Some("tool_calls"));
        let step = choice.take("", Some(FinishReason::MaxTokens));
        assert_eq!(step.finish, Some("length"), "it may not be all that it would have called");
    }

    #[test]
    fn a_second_call_is_dropped_if_one_is_wanted() {
        let mut choice = choice(true);
        let step = choice.take(&format!("Hm. {CALL}{CALL}"), None);
        let calls = step.parts.iter().filter(|part| matches!(part, ReplyPart::ToolCall(_)));
        assert_eq!(calls.count(), 1);
        assert_eq!(step.finish, Some("tool_calls"));
    }

    #[test]
    fn a_forbidden_call_is_content() {
        let mut choice = choice(false);
        let Reading::Chat { parser, .. } = &mut choice.reading else { unreachable!() };
        let format = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Hermes);
        **parser = ReplyParser::new(&format).with_tools(&[]);
        let step = choice.take(CALL, Some(FinishReason::EndOfGeneration));
        let said: String = step
            .parts
            .iter()
            .map(|part| match part {
                ReplyPart::Content(text) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((&*said, step.finish), (CALL, Some("stop")));
    }
}
