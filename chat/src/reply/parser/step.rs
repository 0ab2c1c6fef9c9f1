//! What happens with the text: each step takes it to the next mark, or until more of it is needed.

use std::mem;

use super::super::CallError;
use super::super::call::{CallSyntax, End};
use super::super::channel::{self, LONGEST_HEADER, Message};
use super::super::marks::{At, Marks};
use super::super::section::Kind;
use super::{Call, Mark, ReplyParser, State};

impl ReplyParser {
    /// Goes on in the text; behind the `last` of it, nothing follows. `false`: there is nothing more to do
    /// with what there is.
    pub(super) fn step(&mut self, last: bool) -> bool {
        match mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(last),
            State::Header(start) => self.header(start),
            State::Call(call) => self.call(call, last),
        }
    }

    /// The answer has ended.
    pub(super) fn close(&mut self) {
        if self.is_plain() {
            return;
        }
        while self.step(true) {}
        let end = self.raw.len();
        match mem::replace(&mut self.state, State::Text) {
            State::Text => {}
            State::Header(start) => {
                let text = &self.raw[start..];
                let begins = |mark: &&str| text.starts_with(*mark) || mark.starts_with(text);
                let channels = self.family.channels;
                if channels.is_some_and(|channels| channels.starts.iter().any(begins)) {
                    self.section.begin(Kind::Content, end);
                }
            }
            State::Call(call) => {
                let cut_off = match call.syntax.end {
                    End::Mark(_) | End::Value => true,
                    End::Answer => false,
                    End::WholeAnswer => call.follow.as_ref().is_none_or(|json| json.depth > 0),
                };
                self.read_call(&call, end, end, cut_off);
            }
        }
        self.section.end(&self.raw);
        self.seen = end;
        self.state = State::Text;
    }

    fn text(&mut self, last: bool) -> bool {
        if let Some(bare) = self.bare()
            && self.section.kind == Kind::Content
            && !self.section.has_begun()
        {
            let text = self.raw[self.seen..].trim_start();
            self.seen = self.raw.len() - text.len();
            if text.starts_with('{') {
                self.begin_call(bare, self.seen, self.seen, None);
                return true;
            }
        }
        let marks = match self.section.kind {
            Kind::Content => &self.in_content,
            Kind::Reasoning => &self.in_reasoning,
        };
        let (offset, found) = marks.find(&self.raw[self.seen..], last);
        let at = self.seen + offset;
        self.say(at);
        let At::Mark(mark, length) = found else {
            return false;
        };
        self.seen = at + length;
        self.mark(mark, at);
        true
    }

    /// The text up to there is of the section.
    fn say(&mut self, end: usize) {
        self.section.say(&self.raw, end);
        self.seen = end;
    }

    /// A mark stands there, up to what was seen.
    fn mark(&mut self, mark: Mark, at: usize) {
        let behind = self.seen;
        let started = self.section.started;
        match mark {
            Mark::BeginReasoning if !started => self.section.begin(Kind::Reasoning, behind),
            Mark::EndReasoning if self.section.kind == Kind::Reasoning => {
                self.section.begin(Kind::Content, behind);
            }
            // There was no reasoning: the model closes what it did not open.
            Mark::EndReasoning if !self.section.has_begun() => {
                self.section.begin(Kind::Content, behind);
            }
            Mark::BeginReasoning | Mark::EndReasoning => self.say(behind),
            Mark::Call(syntax) => {
                if self.section.kind == Kind::Reasoning {
                    self.section.begin(Kind::Content, at);
                }
                self.begin_call(syntax, at, behind, None);
            }
            Mark::Silent => self.section.begin(Kind::Content, behind),
            Mark::EndMessage => {
                self.section.begin(Kind::Content, behind);
                self.state = State::Header(behind);
            }
            Mark::Header => self.state = State::Header(at),
        }
    }

    fn header(&mut self, start: usize) -> bool {
        let Some(channels) = self.family.channels else {
            return true;
        };
        let text = &self.raw[start..];
        let (mark, longest) = (channels.header_end, LONGEST_HEADER + channels.header_end.len());
        let mut places = text.as_bytes().windows(mark.len()).take(LONGEST_HEADER + 1);
        let message = match places.position(|bytes| bytes == mark.as_bytes()) {
            Some(end) => {
                let message = (channels.message)(&text[..end]);
                message.map(|message| (message, start + end + mark.len()))
            }
            None if text.len() < longest => {
                self.state = State::Header(start);
                return false;
            }
            None => None,
        };
        if let Some((message, inside)) = message {
            self.begin_message(message, start, inside);
        } else {
            let mark = channels.starts.iter().find(|mark| text.starts_with(**mark));
            self.say(start + mark.map_or(0, |mark| mark.len()));
        }
        true
    }

    /// A message whose header began at `start`, and whose text begins at `inside`.
    pub(super) fn begin_message(&mut self, message: Message, start: usize, inside: usize) {
        self.seen = inside;
        self.state = State::Text;
        match message {
            Message::Content => self.section.begin(Kind::Content, inside),
            Message::Reasoning => self.section.begin(Kind::Reasoning, inside),
            Message::Call(tool) => {
                self.section.begin(Kind::Content, start);
                self.begin_call(&channel::CALL, start, inside, Some(tool));
            }
        }
    }

    fn begin_call(&mut self, syntax: &'static CallSyntax, start: usize, inside: usize, tool: Option<String>) {
        let mut ends = Marks::new();
        if let End::Mark(close) = syntax.end {
            ends.add(close, true);
            ends.add(&[syntax.open], false);
            ends.add(self.family.silent, false);
            if let Some(channels) = self.family.channels {
                ends.add(channels.ends, tool.is_some());
                ends.add(channels.starts, false);
            }
        }
        self.state = State::Call(Call { start, inside, syntax, ends, tool, body: None, follow: None });
    }

    fn call(&mut self, mut call: Call, last: bool) -> bool {
        if call.body.is_none() {
            let text = &self.raw[call.inside..];
            let bodies = call.syntax.bodies.iter();
            let mut bodies = bodies.map(|body| (body, body.begins(text)));
            match bodies.find(|(_, begins)| *begins != Some(false)) {
                Some((body, Some(_))) => (call.body, call.follow) = (Some(body), body.follow()),
                Some((_, None)) => {
                    self.state = State::Call(call);
                    return false;
                }
                None => return self.no_call(&call),
            }
        }
        let end = call.end(self.raw.as_bytes(), &mut self.seen, last);
        if call.is_bare() && call.follow.as_ref().is_some_and(|json| json.stray) {
            return self.no_call(&call);
        }
        let Some((end, behind)) = end else {
            self.state = State::Call(call);
            return false;
        };
        self.read_call(&call, end, behind, false);
        true
    }

    /// What follows the mark begins no call.
    fn no_call(&mut self, call: &Call) -> bool {
        if call.is_bare() {
            self.say(call.start + 1);
        } else {
            let mark = &self.raw[call.start..call.inside];
            self.section.malformed(mark, CallError::NotACall);
            self.say(call.inside);
        }
        true
    }

    /// A call whose text is up to `end`, and its closing mark up to `behind`.
    fn read_call(&mut self, call: &Call, end: usize, behind: usize, cut_off: bool) {
        let text = &self.raw[call.inside..end];
        let calls = match call.body {
            Some(body) => body.read(text, call.tool.as_deref(), &self.tools, cut_off),
            None => Err(CallError::CutOff),
        };
        // Without a mark, only what names a tool was meant as a call.
        let is_tool = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let has_name = |name: &str| text.contains(&format!("\"{name}\""));
        match calls {
            Ok(calls) if !call.is_bare() || calls.iter().all(|call| is_tool(&call.name)) => {
                calls.into_iter().for_each(|call| self.section.call(call));
                self.section.begin(Kind::Content, behind);
            }
            Err(reason) if !call.is_bare() || self.tools.iter().any(|tool| has_name(&tool.name)) => {
                let text = &self.raw[call.start..behind];
                self.section.malformed(text, reason);
                self.say(behind);
            }
            _ => self.say(behind),
        }
        self.seen = behind;
        if call.tool.is_some() {
            self.state = State::Header(behind);
        }
    }
}

impl Call {
    fn is_bare(&self) -> bool {
        matches!(self.syntax.end, End::WholeAnswer)
    }

    /// Where the call ends, and its closing mark, if that is there. Goes on from `seen`.
    fn end(&mut self, raw: &[u8], seen: &mut usize, last: bool) -> Option<(usize, usize)> {
        while let Some(byte) = raw.get(*seen) {
            let in_string = self.follow.as_ref().is_some_and(|json| json.in_string);
            if !in_string {
                match self.ends.at(&raw[*seen..], last) {
                    At::Mark(true, length) => return Some((*seen, *seen + length)),
                    At::Mark(false, _) => return Some((*seen, *seen)),
                    At::Undecided => return None,
                    At::Nothing => {}
                }
            }
            *seen += 1;
            let value_ends = self.follow.as_mut().is_some_and(|json| json.byte(*byte));
            if value_ends && matches!(self.syntax.end, End::Value) {
                return Some((*seen, *seen));
            }
        }
        None
    }
}
