//! Selects the messages that are shown to the model when a conversation outgrows the context: the system message and
//! the latest turns.

use crate::chat::{Message, Role};

/// The behaviour of a [`Chat`](crate::generate::Chat) when the context has no room for all messages and an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatFull {
    /// The chat hides the oldest turns until half of the context is free, so that it need not hide further turns soon.
    /// A system message at the beginning and the last turn always stay.
    /// [`Chat::messages`](crate::generate::Chat::messages) keeps all messages,
    /// [`Chat::forgotten`](crate::generate::Chat::forgotten) returns the hidden ones, and a `tracing` warning reports
    /// them.
    #[default]
    DropOldest,
    /// The request for an answer fails with [`Error::PromptTooLong`](crate::generate::Error::PromptTooLong).
    Error,
}

/// The part of the history that is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    pub(crate) when_full: ChatFull,
    /// The index of the first shown message other than the system message; 0 if all messages are shown.
    pub(crate) from: usize,
}

impl Window {
    /// The messages that are not shown. If the application has truncated the history so far that the first shown
    /// message is gone, the whole history is shown.
    pub(crate) fn forgotten<'m>(&self, messages: &'m [Message]) -> &'m [Message] {
        let kept = kept(messages);
        messages.get(kept..self.from).filter(|_| self.from < messages.len()).unwrap_or_default()
    }

    pub(crate) fn shown(&self, messages: &[Message]) -> Vec<Message> {
        let kept = kept(messages);
        [&messages[..kept], &messages[kept + self.forgotten(messages).len()..]].concat()
    }

    /// Hides one more turn: the messages from one user message to the next. Returns `false` when only the last turn is
    /// left.
    pub(crate) fn narrow(&mut self, messages: &[Message]) -> bool {
        let from = kept(messages) + self.forgotten(messages).len();
        let next = (from + 1..messages.len()).find(|&index| messages[index].role == Role::USER);
        self.from = next.unwrap_or(self.from);
        next.is_some()
    }
}

/// Number of messages at the beginning that always stay.
fn kept(messages: &[Message]) -> usize {
    usize::from(messages.first().is_some_and(|first| [Role::SYSTEM, Role::DEVELOPER].contains(&first.role)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_turns_go_oldest_first_and_a_cut_history_is_shown_from_its_beginning() {
        let mut history = vec![
            Message::system("s"),
            Message::user("1"),
            Message::assistant("a"),
            Message::user("2"),
            Message::new(Role::TOOL, "t"),
            Message::assistant("b"),
            Message::user("3"),
        ];
        let contents =
            |messages: &[Message]| messages.iter().map(|message| message.content.as_str()).collect::<String>();
        let mut window = Window::default();
        assert_eq!(contents(&window.shown(&history)), "s1a2tb3");
        for shown in ["s2tb3", "s3"] {
            assert!(window.narrow(&history));
            assert_eq!(contents(&window.shown(&history)), shown);
        }
        assert!(!window.narrow(&history));
        assert_eq!(contents(window.forgotten(&history)), "1a2tb");
        let whole = Window { from: 0, ..window };
        assert_eq!(contents(&whole.shown(&history)), "s1a2tb3");
        history.truncate(3);
        assert_eq!(contents(&window.shown(&history)), "s1a");
        assert!(window.forgotten(&history).is_empty());
        assert!(!Window::default().narrow(&[]));
    }
}
