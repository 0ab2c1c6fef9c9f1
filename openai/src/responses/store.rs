//! Stores the newest responses for later requests, limited by number and size.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of stored responses, and maximum bytes of them together with their requests.
const MAX_RESPONSES: usize = 1024;
const MAX_STORE_BYTES: usize = 32 << 20;

/// Maximum number of characters of an id in an error.
const MAX_ID_CHARS: usize = 200;

/// A stored response, with the data that the next request needs.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(super) id: String,
    /// The id of the response that this one continued.
    pub(super) previous: Option<String>,
    /// The `input` of the response's request, as JSON.
    pub(super) input: Arc<str>,
    /// The items of the response's output by their ids, each as JSON.
    pub(super) items: Vec<(String, Arc<str>)>,
    /// The whole response, as JSON.
    pub(super) response: Arc<str>,
}

impl Stored {
    fn bytes(&self) -> usize {
        let items: usize = self.items.iter().map(|(id, item)| id.len() + item.len()).sum();
        self.id.len() + self.input.len() + self.response.len() + items
    }
}

/// The responses that a server has stored. Everybody who knows an id can read the response, so ids must not be
/// guessable.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: Mutex<Kept>,
    secrets: [RandomState; 2],
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    responses: VecDeque<Stored>,
    bytes: usize,
}

impl Store {
    /// A new id: 128 bits of a keyed hash.
    pub(crate) fn new_id(&self) -> String {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let [high, low] = self.secrets.each_ref().map(|secret| secret.hash_one(number));
        format!("resp_{high:016x}{low:016x}")
    }

    /// Stores a response. Drops the oldest ones if there is not enough room. Returns false if the response is larger
    /// than the whole store; then it is not stored.
    pub(super) fn keep(&self, stored: Stored) -> bool {
        let bytes = stored.bytes();
        if bytes > MAX_STORE_BYTES {
            return false;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes;
        kept.responses.push_back(stored);
        while kept.responses.len() > MAX_RESPONSES || kept.bytes > MAX_STORE_BYTES {
            let Some(oldest) = kept.responses.pop_front() else { break };
            kept.bytes -= oldest.bytes();
        }
        true
    }

    /// The inputs and outputs that led to a response, the oldest first. Each is a list of items, a text, or a single
    /// item. `None` if one of the responses is not stored.
    pub(super) fn conversation(&self, id: &str) -> Option<Vec<Arc<str>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let stored = kept.responses.iter().find(|stored| stored.id == id)?;
            parts.extend(stored.items.iter().rev().map(|(_, item)| Arc::clone(item)));
            parts.push(Arc::clone(&stored.input));
            // The loop ends, because a response can only continue one that is older.
            next = stored.previous.as_deref();
        }
        parts.reverse();
        Some(parts)
    }

    /// An item in any of the stored outputs.
    pub(super) fn item(&self, id: &str) -> Option<Arc<str>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let items = kept.responses.iter().rev().flat_map(|stored| &stored.items);
        items.into_iter().find(|(item_id, _)| item_id == id).map(|(_, item)| Arc::clone(item))
    }

    /// A response as JSON.
    pub(crate) fn response(&self, id: &str) -> Option<Arc<str>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.responses.iter().find(|stored| stored.id == id).map(|stored| Arc::clone(&stored.response))
    }

    /// Deletes a response. Returns whether it was stored.
    pub(crate) fn delete(&self, id: &str) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.responses.iter().position(|stored| stored.id == id);
        let deleted = at.and_then(|at| kept.responses.remove(at));
        kept.bytes -= deleted.as_ref().map_or(0, Stored::bytes);
        deleted.is_some()
    }
}

/// The message for a response that was requested but is not stored.
pub(crate) fn not_stored(id: &str) -> String {
    let id: String = id.chars().take(MAX_ID_CHARS).collect();
    format!("there is no response `{id}`: it was not stored, or was removed to make room for newer responses")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: &str, previous: Option<&str>, bytes: usize) -> Stored {
        Stored {
            id: id.to_owned(),
            previous: previous.map(str::to_owned),
            input: "i".repeat(bytes).into(),
            items: vec![(format!("{id}-item"), Arc::from(format!("output of {id}")))],
            response: Arc::from("{}"),
        }
    }

    #[test]
    fn a_conversation_is_all_that_led_to_a_response_and_ends_where_one_is_gone() {
        let store = Store::default();
        for (id, previous) in [("a", None), ("b", Some("a")), ("c", Some("b"))] {
            store.keep(stored(id, previous, 1));
        }
        let conversation = |id| store.conversation(id).map(|parts| parts.join("|"));
        assert_eq!(conversation("c").unwrap(), "i|output of a|i|output of b|i|output of c");
        assert_eq!(store.item("b-item").as_deref(), Some("output of b"));
        assert!(store.delete("a") && !store.delete("a"));
        assert_eq!((conversation("c"), store.response("a")), (None, None));
    }

    #[test]
    fn the_oldest_responses_make_room_and_too_large_ones_are_not_stored() {
        let store = Store::default();
        for number in 0..MAX_RESPONSES + 5 {
            store.keep(stored(&number.to_string(), None, 10));
        }
        assert!(store.response("4").is_none() && store.response("5").is_some());
        assert!(store.keep(stored("large", None, MAX_STORE_BYTES - 100)));
        assert!(store.response("large").is_some() && store.response("1000").is_none());
        assert!(!store.keep(stored("too large", None, MAX_STORE_BYTES)));
        assert!(store.response("too large").is_none() && store.response("large").is_some());
        assert!(store.kept.lock().unwrap().bytes <= MAX_STORE_BYTES);
    }

    #[test]
    fn no_two_ids_are_the_same_in_one_server_or_in_two() {
        let (one, other) = (Store::default(), Store::default());
        let ids = [one.new_id(), one.new_id(), other.new_id(), other.new_id()];
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 4, "{ids:?}");
        assert!(ids.iter().all(|id| id.len() == 37));
    }
}
