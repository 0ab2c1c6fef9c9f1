//! LoRA adapters by number, as in llama-server: the parameter `lora` of requests, and the path `/lora-adapters`.

use autoplace::load::Adapter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;

/// Maximum entries of a list of adapters.
pub(super) const MAX_ADAPTERS: usize = 256;

/// Maximum characters of a name in an error.
const MAX_SHOWN: usize = 256;

/// The adapters in use, by the names that the library gives them, each with its scale. All other adapters are off.
pub(super) type Set = Vec<(String, f32)>;

/// An entry of a list of adapters.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    id: Id,
    scale: f32,
}

/// An adapter, given by its name or by its number in the order of the load.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Id {
    Number(usize),
    Name(String),
}

/// The adapters that these entries name. If an adapter is repeated, its last scale counts. Errors say that the list is
/// at `place`.
pub(super) fn set(entries: &[Entry], adapters: &[Adapter], place: &str) -> Result<Set, ApiError> {
    let named = |(index, Entry { id, scale }): (usize, &Entry)| {
        let (adapter, said) = match id {
            Id::Number(number) => (adapters.get(*number), number.to_string()),
            Id::Name(name) => {
                // A name from anybody may be as long as a request.
                let shown: String = name.chars().take(MAX_SHOWN).collect();
                (adapters.iter().find(|adapter| adapter.name == *name), format!("`{shown}`"))
            }
        };
        let unknown = || {
            let has = match adapters.len() {
                0 => "the model was loaded without adapters".to_owned(),
                1 => "the model has one adapter, 0".to_owned(),
                n => format!("the model has the adapters 0 to {}", n - 1),
            };
            ApiError::invalid(place, format!("{place}[{index}].id is {said}: {has}"))
        };
        if !scale.is_finite() {
            return Err(ApiError::invalid(
                place,
                format!("{place}[{index}].scale is {scale}: a finite number is needed"),
            ));
        }
        Ok((adapter.ok_or_else(unknown)?.name.clone(), *scale))
    };
    entries.iter().enumerate().map(named).collect()
}

/// The adapters of a model, with the scales of this set; without a set, with the scales of the load. A path in the list
/// is only a file's name, so that no client sees the machine's folders.
pub(super) fn list(adapters: &[Adapter], set: Option<&Set>) -> Value {
    let scale = |adapter: &Adapter| match set {
        Some(set) => set.iter().rev().find(|(name, _)| *name == adapter.name).map_or(0.0, |(_, scale)| *scale),
        None => adapter.scale,
    };
    let entry = |(id, adapter): (usize, &Adapter)| {
        let file = adapter.path.file_name().unwrap_or_default().to_string_lossy();
        json!({"id": id, "name": adapter.name, "path": file, "scale": scale(adapter)})
    };
    adapters.iter().enumerate().map(entry).collect()
}
