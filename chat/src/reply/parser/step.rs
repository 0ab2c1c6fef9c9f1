//! The steps of the parser. A step goes on to the next mark, or stops until more text arrives.

use std::{mem, slice};

use super::super::CallError;
use super::super::call::{Body, CallSyntax, End};
use super::super::channel::{self, MAX_HEADER, Message};
use super::super::json;
use super::super::marks::{At, Marks};
use super::super::section::Kind;
use super::super::tags::Tags;
use super::{Call, Mark, ReplyParser, State, Within};

impl ReplyParser {
    /// Goes one step further in the text. `last` says that no more text follows. Returns false if more text is needed.
    pub(super) fn step(&mut self, last: bool) -> bool {
        match mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(last),
            State::Header(start) => self.header(start),
            State::Call(call) => self.call(call, last),
        }
    }

    /// Ends the answer.
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
        if let Some(waits) = self.doubled_close(last) {
            return waits;
        }
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

    /// After a call, skips its closing mark if it comes once more, because models sometimes repeat it. `None` if no
    /// such mark can follow.
    fn doubled_close(&mut self, last: bool) -> Option<bool> {
        let text = self.raw[self.seen..].trim_start();
        let marks = self.closed_by;
        if marks.is_empty() {
            return None;
        }
        if let Some(mark) = marks.iter().find(|mark| text.starts_with(**mark)) {
            self.seen = self.raw.len() - text.len() + mark.len();
            self.section.begin(Kind::Content, self.seen);
            return Some(true);
        }
        if !last && marks.iter().any(|mark| mark.starts_with(text)) {
            return Some(false);
        }
        self.closed_by = &[];
        None
    }

    /// Adds the text before `end` to the section.
    fn say(&mut self, end: usize) {
        self.section.say(&self.raw, end);
        self.seen = end;
    }

    /// Handles a mark that begins at `at` and ends at `seen`.
    fn mark(&mut self, mark: Mark, at: usize) {
        let behind = self.seen;
        // If a mark is a control token, it is never text.
        let always = self.reasoning.is_some_and(|marks| marks.close().contains('|'));
        let ends = always || self.section.kind == Kind::Reasoning;
        match mark {
            Mark::BeginReasoning if always || !self.section.started => self.section.begin(Kind::Reasoning, behind),
            // A closing mark whose opening mark is missing: the model closes reasoning that it did not open.
            Mark::EndReasoning if ends || !self.section.has_begun() => self.section.begin(Kind::Content, behind),
            Mark::BeginReasoning | Mark::EndReasoning => self.say(behind),
            Mark::Call(syntax) => self.begin_call(syntax, at, behind, None),
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
        let (mark, longest) = (channels.header_end, MAX_HEADER + channels.header_end.len());
        let mut places = text.as_bytes().windows(mark.len()).take(MAX_HEADER + 1);
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

    /// Begins a message. Its header begins at `start`, and its text begins at `inside`.
    pub(super) fn begin_message(&mut self, message: Message, start: usize, inside: usize) {
        self.seen = inside;
        self.state = State::Text;
        match message {
            Message::Content => self.section.begin(Kind::Content, inside),
            Message::Reasoning => self.section.begin(Kind::Reasoning, inside),
            // The tool's name is in the header, so the header becomes content too.
            Message::Call(_) if self.forbids_calls => self.section.begin(Kind::Content, start),
            Message::Call(tool) => {
                self.section.begin(Kind::Content, start);
                self.begin_call(&channel::CALL, start, inside, Some(tool));
            }
        }
    }

    fn begin_call(&mut self, syntax: &'static CallSyntax, start: usize, inside: usize, tool: Option<String>) {
        let mut ends = Marks::new();
        if let End::Mark(close) = syntax.end {
            ends.add(close, Within::Close);
            ends.add(&[syntax.open], Within::Other);
            if let Some(channels) = self.family.channels {
                ends.add(channels.ends, if tool.is_some() { Within::Close } else { Within::Other });
                ends.add(channels.starts, Within::Other);
            }
            ends.add(self.thought_end(), Within::Other);
        }
        ends.add(self.family.silent, Within::Other);
        self.state = State::Call(Call {
            start,
            inside,
            syntax,
            ends,
            in_value: false,
            tool,
            body: None,
            follow: None,
            unclosed: None,
        });
    }

    /// The mark that closes the reasoning; empty if no reasoning is open.
    fn thought_end(&self) -> &[&'static str] {
        match &self.reasoning {
            Some(marks) if self.section.kind == Kind::Reasoning => slice::from_ref(&marks.close),
            _ => &[],
        }
    }

    fn call(&mut self, mut call: Call, last: bool) -> bool {
        if call.body.is_none() {
            let text = &self.raw[call.inside..];
            let bodies = call.syntax.bodies.iter();
            let mut bodies = bodies.map(|body| (body, body.begins(text)));
            match bodies.find(|(_, begins)| *begins != Some(false)) {
                Some((body, Some(_))) => {
                    (call.body, call.follow) = (Some(body), body.follow());
                    if let Body::Tags(tags) = body {
                        let begin = if tags.value[0].is_empty() { tags.key[0] } else { tags.value[0] };
                        call.ends.add(&[begin], Within::Value(true));
                        call.ends.add(&[tags.value[1]], Within::Value(false));
                    }
                }
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
        let thought_ends = self.thought_end().iter().any(|mark| self.raw[end..].starts_with(mark));
        if thought_ends && end == behind && matches!(call.syntax.end, End::Mark(_)) {
            // The reasoning ends before the call does. So the mark of a call was only mentioned.
            self.say(end);
        } else {
            self.read_call(&call, end, behind, false);
        }
        true
    }

    /// Handles the text after a mark that does not begin a call.
    fn no_call(&mut self, call: &Call) -> bool {
        // In reasoning this is no error, because the model may be writing about calls.
        if !call.is_bare() && self.section.kind == Kind::Content {
            let mark = &self.raw[call.start..call.inside];
            self.section.malformed(mark, CallError::NotACall);
        }
        self.say(if call.is_bare() { call.start + 1 } else { call.inside });
        true
    }

    /// Parses a call. Its text ends at `end`, and its closing mark ends at `behind`.
    fn read_call(&mut self, call: &Call, end: usize, behind: usize, cut_off: bool) {
        let text = &self.raw[call.inside..end];
        let calls = match call.body {
            Some(body) => body.read(text, call.tool.as_deref(), &self.tools, cut_off),
            None => Err(CallError::CutOff),
        };
        if self.is_forced && cut_off {
            if let Some(called) = json::cut_off(text, &self.tools) {
                self.section.call(called);
            }
            self.section.begin(Kind::Content, behind);
            self.seen = behind;
            return;
        }
        // If there is no mark, the text is a call only if it names a tool.
        let is_tool = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let has_name = |name: &str| text.contains(&format!("\"{name}\""));
        match calls {
            Ok(calls) if !call.is_bare() || calls.iter().all(|call| is_tool(&call.name)) => {
                calls.into_iter().for_each(|call| self.section.call(call));
                self.section.begin(Kind::Content, behind);
            }
            Err(reason) if !call.is_bare() || self.tools.iter().any(|tool| has_name(&tool.name)) => {
                if self.section.kind == Kind::Reasoning {
                    self.section.begin(Kind::Content, call.start);
                }
                let text = &self.raw[call.start..behind];
                self.section.malformed(text, reason);
                self.say(behind);
            }
            _ => self.say(behind),
        }
        self.seen = behind;
        if let End::Mark(marks) = call.syntax.end
            && behind > end
        {
            self.closed_by = marks;
        }
        if call.tool.is_some() {
            self.state = State::Header(behind);
        }
    }
}

impl Call {
    fn is_bare(&self) -> bool {
        matches!(self.syntax.end, End::WholeAnswer)
    }

    /// Where the call's text ends, and where its closing mark ends. Both are the same if there is no mark. The search
    /// continues at `seen`.
    fn end(&mut self, raw: &[u8], seen: &mut usize, last: bool) -> Option<(usize, usize)> {
        while let Some(byte) = raw.get(*seen) {
            let in_string = self.follow.as_ref().is_some_and(|json| json.in_string);
            if !in_string {
                let end = match self.ends.at(&raw[*seen..], last) {
                    At::Mark(Within::Value(begins), _) => {
                        self.in_value = begins;
                        if !begins {
                            self.unclosed = None;
                        }
                        None
                    }
                    At::Mark(Within::Close, length) => Some((*seen, *seen + length)),
                    At::Mark(Within::Other, _) => Some((*seen, *seen)),
                    At::Undecided => return None,
                    At::Nothing => None,
                };
                // If a value's closing tag is missing, the value ends with the call. This is certain only if another
                // call or another mark follows.
                if self.in_value
                    && let Some((_, behind)) = end.filter(|(end, behind)| behind > end)
                {
                    let unclosed = *self.unclosed.get_or_insert((*seen, behind));
                    let rest = raw[behind..].trim_ascii_start();
                    match self.ends.at(rest, last) {
                        At::Undecided => return None,
                        At::Nothing if rest.is_empty() && !last => return None,
                        At::Mark(Within::Other | Within::Close, _) => return Some(unclosed),
                        _ => {}
                    }
                }
                // After its last tag a call has ended, even if a value's closing tag is missing.
                let is_closed = |tags: &Tags| {
                    let close = tags.call[2].as_bytes();
                    let before = raw[self.inside..*seen].trim_ascii_end();
                    !close.is_empty() && (before.ends_with(close) || raw[*seen..].starts_with(close))
                };
                if end.is_some() && (!self.in_value || matches!(self.body, Some(Body::Tags(tags)) if is_closed(tags))) {
                    return end;
                }
            }
            *seen += 1;
            let value_ends = self.follow.as_mut().is_some_and(|json| json.byte(*byte));
            if value_ends && matches!(self.syntax.end, End::Value) {
                return Some((*seen, *seen));
            }
        }
        // The answer has ended, and after the call's closing mark came no tag that closes the value.
        self.unclosed.filter(|_| last)
    }
}
