//! What a plan is made for: the tokens of a prompt, the tokens of its reply, and what is in the context before them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tokens that a plan is to get through in the least time. Its `Display` is what `autoplace plan --workload`
/// takes: `4096+512`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Workload {
    /// Tokens in the context before the prompt: earlier turns.
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

    /// Sets the tokens before the prompt.
    pub const fn after(mut self, tokens: u32) -> Self {
        self.before = tokens;
        self
    }

    /// What a plan is made for where nothing is stated: a prompt of 1024 tokens (of a context of more than 8192 an
    /// eighth, up to 4096) and 256 of a reply, whose middle is the middle of the context. Of a short context both are
    /// less.
    pub fn typical(n_ctx: u32) -> Self {
        let (prompt, reply) = ((n_ctx / 8).clamp(1024, 4096).min(n_ctx / 4), (n_ctx / 8).clamp(1, 256));
        Self::new(prompt, reply).after((n_ctx / 2).saturating_sub(prompt + reply / 2))
    }

    /// The tokens before the middle of the reply.
    pub const fn depth(&self) -> u32 {
        self.before.saturating_add(self.prompt).saturating_add(self.reply / 2)
    }

    /// The tokens before the middle of the prompt.
    pub(super) const fn prompt_depth(&self) -> u32 {
        self.before.saturating_add(self.prompt / 2)
    }

    /// All tokens.
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
