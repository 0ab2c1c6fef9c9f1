//! The workload that a plan is optimised for: the tokens already in the context, a prompt and a reply.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A prompt and its reply, whose total time a plan minimises. Its `Display` is the syntax of `autoplace plan
/// --workload`: `4096+512`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Workload {
    /// Tokens in the context before the prompt, from earlier turns.
    #[serde(default)]
    pub before: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the reply.
    pub reply: u32,
}

impl Workload {
    /// A prompt and its reply, in an empty context.
    pub const fn new(prompt: u32, reply: u32) -> Self {
        Self { before: 0, prompt, reply }
    }

    /// Sets the tokens in the context before the prompt.
    pub const fn after(mut self, tokens: u32) -> Self {
        self.before = tokens;
        self
    }

    /// The default workload for a context of `n_ctx` tokens. The prompt has 1024 tokens, or an eighth of a context
    /// above 8192, up to 4096. The reply has 256 tokens, and its middle is the middle of the context. A short context
    /// gets a shorter prompt and reply.
    pub fn typical(n_ctx: u32) -> Self {
        let (prompt, reply) = ((n_ctx / 8).clamp(1024, 4096).min(n_ctx / 4), (n_ctx / 8).clamp(1, 256));
        Self::new(prompt, reply).after((n_ctx / 2).saturating_sub(prompt + reply / 2))
    }

    /// Tokens before the middle of the reply.
    pub const fn depth(&self) -> u32 {
        self.before.saturating_add(self.prompt).saturating_add(self.reply / 2)
    }

    /// Tokens before the middle of the prompt.
    pub(super) const fn prompt_depth(&self) -> u32 {
        self.before.saturating_add(self.prompt / 2)
    }

    /// The tokens of context, prompt and reply together.
    pub const fn tokens(&self) -> u32 {
        self.before.saturating_add(self.prompt).saturating_add(self.reply)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.prompt, self.reply)?;
        match self.before {
            0 => Ok(()),
            before => write!(f, " after {before}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Workload;

    #[test]
    fn the_middle_of_a_typical_reply_is_the_middle_of_the_context() {
        for (n_ctx, prompt) in [(4096, 1024), (8192, 1024), (16_384, 2048), (32_768, 4096), (131_072, 4096)] {
            let workload = Workload::typical(n_ctx);
            assert_eq!((workload.prompt, workload.reply, workload.depth()), (prompt, 256, n_ctx / 2));
        }
        let short = Workload::typical(512);
        assert!(short.tokens() <= 512 && short.depth() == 256);
        assert_eq!(Workload::new(4096, 512).to_string(), "4096+512");
    }
}
