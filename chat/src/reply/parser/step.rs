//! What happens with the text: each step takes it to the next mark, or until more of it is needed.

use std::mem;

use super::super::call::{Body, CallSyntax, End};
use super::super::channel::{Channels, LONGEST_HEADER, Message};
use super::super::json::{self, Follow, Shape};
use super::super::marks::{At, Marks};
use super::super::section::Kind;
use super::super::{CallError, ToolCall};
use super::{CallState, Mark, ReplyParser, State};

impl ReplyParser {
    /// Goes on in the text; behind the `last` of it, nothing follows. `false`: there is nothing more to do
    /// with what there is.
    pub(super) fn step(&mut self, last: bool) -> bool {
        match mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(last),
            State::Header(start) => self.header(start),
            State::Call(call) => self.call(call, last),
            State::Bare { start, follow } => self.bare_json(start, follow),
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
                let starts = self.channels.map_or(&[][..], |channels| channels.starts);
                if starts
                    .iter()
                    .any(|mark| text.starts_with(mark) || mark.starts_with(text))
                {
                    self.section.begin(Kind::Content, end);
                }
            }
            State::Call(call) => {
                let cut_off = call.syntax.end != End::Answer;
                self.read_call(call, end, end, cut_off);
            }
            State::Bare { start, follow } => self.read_bare(start, follow),
        }
        self.section.end(&self.raw);
        self.seen = end;
        self.state = State::Text;
    }

    fn text(&mut self, last: bool) -> bool {
        if self.section.kind == Kind::Content
            && self.bare()
            && !self.section.started()
            && !self.section.has_content()
        {
            let rest = &self.raw[self.seen..];
            let text = rest.trim_start();
            self.seen += rest.len() - text.len();
            if text.starts_with('{') {
                self.state = State::Bare {
                    start: self.seen,
                    follow: None,
                };
                return true;
            }
        }
        let marks = match self.section.kind {
            Kind::Content => &self.in_content,
            Kind::Reasoning => &self.in_reasoning,
        };
        let (offset, found) = marks.find(&self.raw[self.seen..], last);
        let at = self.seen + offset;
        self.section.say(&self.raw, at);
        self.seen = at;
        let At::Mark(mark, length) = found else {
            return false;
        };
        self.seen = at + length;
        self.mark(mark, at);
        true
    }

    /// A mark stands there, up to what was seen.
    fn mark(&mut self, mark: Mark, at: usize) {
        let behind = self.seen;
        let started = self.section.started();
        match mark {
            Mark::BeginReasoning if !started => self.section.begin(Kind::Reasoning, behind),
            Mark::EndReasoning if self.section.kind == Kind::Reasoning => {
                self.section.begin(Kind::Content, behind);
            }
            // There was no reasoning: the model closes what it did not open.
            Mark::EndReasoning if !started && !self.section.has_content() => {
                self.section.begin(Kind::Content, behind);
            }
            Mark::BeginReasoning | Mark::EndReasoning => self.section.say(&self.raw, behind),
            Mark::Call(index) => {
                if self.section.kind == Kind::Reasoning {
                    self.section.begin(Kind::Content, at);
                }
                self.begin_call(&self.syntaxes[index], at, behind, None);
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
        let Some(channels) = self.channels else {
            return true;
        };
        let text = &self.raw[start..];
        let longest = LONGEST_HEADER + channels.header_end.len();
        let bytes = &text.as_bytes()[..text.len().min(longest)];
        let end = bytes
            .windows(channels.header_end.len())
            .position(|window| window == channels.header_end.as_bytes());
        let message = match end {
            Some(end) => {
                let inside = start + end + channels.header_end.len();
                (channels.message)(&text[..end]).map(|message| (message, inside))
            }
            None if text.len() < longest => {
                self.state = State::Header(start);
                return false;
            }
            None => None,
        };
        if let Some((message, inside)) = message {
            self.begin_message(channels, message, start, inside);
        } else {
            let mark = channels.starts.iter().find(|mark| text.starts_with(**mark));
            self.seen = start + mark.map_or(0, |mark| mark.len());
            self.section.say(&self.raw, self.seen);
        }
        true
    }

    /// A message whose header began at `start`, and whose text begins at `inside`.
    pub(super) fn begin_message(
        &mut self,
        channels: &'static Channels,
        message: Message,
        start: usize,
        inside: usize,
    ) {
        self.seen = inside;
        self.state = State::Text;
        match message {
            Message::Content => self.section.begin(Kind::Content, inside),
            Message::Reasoning => self.section.begin(Kind::Reasoning, inside),
            Message::Call(tool) => {
                self.section.begin(Kind::Content, start);
                self.begin_call(channels.call, start, inside, Some(tool));
            }
        }
    }

    fn begin_call(
        &mut self,
        syntax: &'static CallSyntax,
        start: usize,
        inside: usize,
        tool: Option<String>,
    ) {
        let mut ends = Marks::new();
        if syntax.end == End::Mark {
            let channels = self.channels.iter();
            let messages =
                channels.flat_map(|channels| channels.ends.iter().chain(channels.starts));
            syntax.close.iter().for_each(|mark| ends.add(mark, true));
            syntax.open.iter().for_each(|mark| ends.add(mark, false));
            self.silent.iter().for_each(|mark| ends.add(mark, false));
            messages.for_each(|mark| ends.add(mark, false));
        }
        self.state = State::Call(CallState {
            start,
            inside,
            syntax,
            ends,
            tool,
            body: None,
        });
    }

    fn call(&mut self, mut call: CallState, last: bool) -> bool {
        if call.body.is_none() {
            match body(call.syntax, &self.raw[call.inside..]) {
                Begins::As(body) => call.body = Some((body, body.follow())),
                Begins::AsNone => {
                    let mark = &self.raw[call.start..call.inside];
                    self.section.malformed(mark, CallError::NotACall);
                    self.section.say(&self.raw, call.inside);
                    self.seen = call.inside;
                    return true;
                }
                Begins::Undecided => {
                    self.state = State::Call(call);
                    return false;
                }
            }
        }
        let Some((end, behind)) = call.end(self.raw.as_bytes(), &mut self.seen, last) else {
            self.state = State::Call(call);
            return false;
        };
        self.read_call(call, end, behind, false);
        true
    }

    /// A call whose text is up to `end`, and its closing mark up to `behind`.
    fn read_call(&mut self, call: CallState, end: usize, behind: usize, cut_off: bool) {
        let inside = &self.raw[call.inside..end];
        let calls = match &call.body {
            Some((body, _)) => body.read(inside, call.tool.as_deref(), &self.tools, cut_off),
            None => Err(CallError::CutOff),
        };
        match calls {
            Ok(calls) => self.calls(calls, behind),
            Err(reason) => {
                self.section
                    .malformed(&self.raw[call.start..behind], reason);
                self.section.say(&self.raw, behind);
            }
        }
        self.seen = behind;
        if call.tool.is_some() {
            self.state = State::Header(behind);
        }
    }

    fn calls(&mut self, calls: Vec<ToolCall>, behind: usize) {
        calls.into_iter().for_each(|call| self.section.call(call));
        self.section.begin(Kind::Content, behind);
    }

    fn bare_json(&mut self, start: usize, follow: Option<Follow>) -> bool {
        let mut follow = match follow {
            Some(follow) => follow,
            None => match begins_as_bare(&self.raw[start..]) {
                Some(true) => Follow::new(false),
                Some(false) => return self.not_bare(start),
                None => {
                    self.state = State::Bare {
                        start,
                        follow: None,
                    };
                    return false;
                }
            },
        };
        for byte in self.raw.as_bytes()[self.seen..].iter().copied() {
            let between = byte.is_ascii_whitespace() || b"{;,".contains(&byte);
            if follow.outside() && !between {
                return self.not_bare(start);
            }
            follow.byte(byte);
        }
        self.seen = self.raw.len();
        self.state = State::Bare {
            start,
            follow: Some(follow),
        };
        false
    }

    /// It is content, whatever it looks like.
    fn not_bare(&mut self, start: usize) -> bool {
        self.seen = start + 1;
        self.section.say(&self.raw, self.seen);
        true
    }

    /// The answer has ended within JSON without a mark: a call, if it is whole and of one of the tools.
    fn read_bare(&mut self, start: usize, follow: Option<Follow>) {
        let text = &self.raw[start..];
        let known = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        match json::calls(text, Shape::NameAndArguments) {
            Ok(calls) if calls.iter().all(|call| known(&call.name)) => {
                self.calls(calls, self.raw.len());
            }
            Ok(_) => {}
            Err(reason) => {
                let names_a_tool = |name: &str| text.contains(&format!("\"{name}\""));
                if self.tools.iter().any(|tool| names_a_tool(&tool.name)) {
                    let cut_off = follow.is_none_or(|follow| !follow.outside());
                    let reason = if cut_off { CallError::CutOff } else { reason };
                    self.section.malformed(text, reason);
                }
            }
        }
    }
}

impl CallState {
    /// Where the call ends, and its closing mark, if that is there. Goes on from `seen`.
    fn end(&mut self, raw: &[u8], seen: &mut usize, last: bool) -> Option<(usize, usize)> {
        let mut follow = self.body.as_mut().and_then(|(_, follow)| follow.as_mut());
        while let Some(byte) = raw.get(*seen) {
            if !follow.as_deref().is_some_and(Follow::in_string) {
                match self.ends.at(&raw[*seen..], last) {
                    At::Mark(true, length) => return Some((*seen, *seen + length)),
                    At::Mark(false, _) => return Some((*seen, *seen)),
                    At::Undecided => return None,
                    At::Nothing => {}
                }
            }
            *seen += 1;
            if let Some(follow) = &mut follow {
                follow.byte(*byte);
                if self.syntax.end == End::Value && follow.ended() {
                    return Some((*seen, *seen));
                }
            }
        }
        None
    }
}

/// How text begins.
enum Begins {
    As(&'static Body),
    AsNone,
    Undecided,
}

fn body(syntax: &'static CallSyntax, text: &str) -> Begins {
    for body in syntax.bodies {
        match body.begins(text) {
            Some(true) => return Begins::As(body),
            Some(false) => {}
            None => return Begins::Undecided,
        }
    }
    Begins::AsNone
}

/// What the first key of a call without a mark is called.
const FIRST_KEYS: &[&str] = &["\"name\"", "\"type\"", "\"function\"", "\"parameters\""];

/// Whether an object begins as a call. `None`: it is too short to say.
fn begins_as_bare(text: &str) -> Option<bool> {
    const MOST_WHITESPACE: usize = 64;
    let inside = text.strip_prefix('{')?;
    let key = inside.trim_start();
    if inside.len() - key.len() > MOST_WHITESPACE {
        return Some(false);
    }
    if FIRST_KEYS.iter().any(|first| key.starts_with(first)) {
        Some(true)
    } else if FIRST_KEYS.iter().any(|first| first.starts_with(key)) {
        None
    } else {
        Some(false)
    }
}
