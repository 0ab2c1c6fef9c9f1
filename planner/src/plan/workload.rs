//! The workload that a plan is optimised for: a prompt and its reply, at one depth or along a growing conversation.
//! Also the depths for which the plan is made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::speed::Depths;
use crate::json;
use crate::machine::ParseError;

/// A prompt and its reply, whose total time a plan minimises. Its `Display` is the syntax of `autoplace plan
/// --workload`: `4096+512`.
///
/// All tokens of a **reply** are counted at the depth of the reply's middle, after the prompt. A **conversation**
/// ([`growing_to`](Self::growing_to)) begins with its prompt and grows, and the reply's tokens are spread evenly over
/// its depths. With `P` tokens before the first reply, `N` tokens at the end and `t(d)` the seconds of a token with `d`
/// tokens before it ([`SpeedModel::token_seconds`](super::speed::SpeedModel::token_seconds)), a conversation takes
///
/// ```text
/// seconds of the prompt + reply / (N - P) * integral of t(d) from d = P to d = N
/// ```
///
/// Prompt and reply thus count as much as without growth.
///
/// ```
/// use autoplace_planner::plan::Workload;
/// let reply = Workload::new(1024, 256);
/// assert_eq!((reply.depth(), reply.tokens()), (1152, 1280));
/// let conversation = Workload::new(1024, 256).growing_to(4096);
/// assert_eq!((conversation.depth(), conversation.tokens()), (2560, 4096));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Workload {
    /// The number of tokens in the context before the prompt, from earlier turns.
    #[serde(default)]
    pub before: u32,
    /// The number of tokens of the prompt.
    pub prompt: u32,
    /// The number of tokens of the reply.
    pub reply: u32,
    /// The number of tokens to which the conversation grows; 0 for a single reply.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub grows_to: u32,
}

impl Workload {
    /// A prompt and its reply, in an empty context.
    pub const fn new(prompt: u32, reply: u32) -> Self {
        Self { before: 0, prompt, reply, grows_to: 0 }
    }

    /// Sets the tokens in the context before the prompt.
    pub const fn after(mut self, tokens: u32) -> Self {
        self.before = tokens;
        self
    }

    /// Spreads the reply over a conversation that grows to this many tokens. If the prompt and its reply already reach
    /// this number, this has no effect.
    pub const fn growing_to(mut self, tokens: u32) -> Self {
        self.grows_to = if tokens > self.end() { tokens } else { 0 };
        self
    }

    /// The same prompt and reply, with the middle of the reply at this depth. A small depth shortens the prompt, and a
    /// very small depth also shortens the reply.
    pub fn at_depth(mut self, depth: u32) -> Self {
        self.grows_to = 0;
        self.reply = self.reply.min(depth.saturating_mul(2).max(1));
        let begin = depth - depth.min(self.reply / 2);
        self.prompt = self.prompt.min(begin);
        self.before = begin - self.prompt;
        self
    }

    /// The default workload for a context of `n_ctx` tokens: a conversation that grows from its prompt to the whole
    /// context. The prompt has 1024 tokens or, if the context has more than 8192 tokens, an eighth of it, but at most
    /// 4096 tokens. The reply has 256 tokens. A short context gets a shorter prompt and reply.
    pub fn typical(n_ctx: u32) -> Self {
        let (prompt, reply) = ((n_ctx / 8).clamp(1024, 4096).min(n_ctx / 4), (n_ctx / 8).clamp(1, 256));
        Self::new(prompt, reply).growing_to(n_ctx)
    }

    /// The number of tokens before the middle of the reply, or before the middle of the conversation's growth.
    pub const fn depth(&self) -> u32 {
        let from = self.before.saturating_add(self.prompt);
        let grown = if self.grows_to > 0 { self.grows_to.saturating_sub(from) } else { self.reply };
        from.saturating_add(grown / 2)
    }

    /// The depths over which the reply's tokens are spread.
    pub(super) fn depths(&self) -> Depths {
        match self.grows_to {
            0 => Depths::from(self.depth()),
            end => Depths::new(self.before.saturating_add(self.prompt), end),
        }
    }

    /// The number of tokens before the middle of the prompt.
    pub(super) const fn prompt_depth(&self) -> u32 {
        self.before.saturating_add(self.prompt / 2)
    }

    /// The tokens of context, prompt and reply together. For a conversation, the number of tokens to which it grows.
    pub const fn tokens(&self) -> u32 {
        let end = self.end();
        if self.grows_to > end { self.grows_to } else { end }
    }

    /// The sum of the tokens of context, prompt and reply, without growth.
    const fn end(&self) -> u32 {
        self.before.saturating_add(self.prompt).saturating_add(self.reply)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.prompt, self.reply)?;
        if self.before > 0 {
            write!(f, " after {}", self.before)?;
        }
        match self.grows_to {
            0 => Ok(()),
            tokens => write!(f, ", growing to {tokens}"),
        }
    }
}

/// The depths for which a plan is made. A depth is the number of live tokens of all sequences together.
///
/// ```
/// use autoplace_planner::plan::Depth;
/// assert_eq!("follow".parse(), Ok(Depth::Follow));
/// assert_eq!("16384".parse(), Ok(Depth::Fixed(16_384)));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Depth {
    /// The placement follows the depth of the conversation. If the times of two placements cross within the context and
    /// moves are worthwhile, the plan has both placements ([`Plan::by_depth`](super::Plan::by_depth)), and a loaded
    /// model moves between them.
    ///
    /// A plan nevertheless has only one placement in these cases: the request states a
    /// [workload](super::Request::workload), an exact number of layers, overrides or proportions; files are loaded
    /// together with the model; or weights are paged.
    #[default]
    Follow,
    /// One placement for all depths. It is the fastest over the whole conversation.
    All,
    /// One placement, which is the fastest at this depth.
    Fixed(u32),
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follow => f.write_str("follow"),
            Self::All => f.write_str("all"),
            Self::Fixed(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl FromStr for Depth {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "follow" => Ok(Self::Follow),
            "all" => Ok(Self::All),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| ParseError::new(text, "not a depth: use follow, all, or a number of live tokens")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Depth, Workload};

    #[test]
    fn a_typical_conversation_grows_from_its_prompt_to_the_whole_context() {
        for (n_ctx, prompt) in [(4096, 1024), (8192, 1024), (16_384, 2048), (32_768, 4096), (131_072, 4096)] {
            let workload = Workload::typical(n_ctx);
            assert_eq!((workload.prompt, workload.reply, workload.tokens()), (prompt, 256, n_ctx));
            assert_eq!(workload.depth(), prompt + (n_ctx - prompt) / 2);
        }
        for n_ctx in 1..600 {
            let short = Workload::typical(n_ctx);
            assert!(short.tokens() <= n_ctx && short.depth() <= n_ctx && short.reply > 0, "{short}");
        }
        assert_eq!(Workload::new(4096, 512).to_string(), "4096+512");
        assert_eq!(Workload::typical(4096).to_string(), "1024+256, growing to 4096");
    }

    #[test]
    fn a_workload_at_a_depth_has_the_middle_of_its_reply_there_and_does_not_grow() {
        let deep = Workload::typical(32_768).at_depth(16_384);
        assert_eq!((deep.depth(), deep.grows_to), (16_384, 0));
        for depth in [0, 1, 64, 127, 500, 1152, 20_000] {
            let workload = Workload::new(1024, 256).at_depth(depth);
            assert!(workload.depth() == depth && workload.reply > 0, "{workload}");
        }
    }

    #[test]
    fn a_depth_is_parsed_as_it_is_displayed_and_other_texts_are_refused() {
        for depth in [Depth::Follow, Depth::All, Depth::Fixed(0), Depth::Fixed(5200)] {
            assert_eq!(depth.to_string().parse(), Ok(depth));
        }
        for wrong in ["", "deep", "-1", "5,200", "1e4", "4294967296"] {
            assert!(wrong.parse::<Depth>().is_err(), "{wrong}");
        }
    }
}
