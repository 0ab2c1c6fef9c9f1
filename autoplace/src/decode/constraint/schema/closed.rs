//! Closes objects: an object with `properties` has no other properties unless its schema mentions them. llama.cpp does
//! the same (common/json-schema-to-grammar.cpp, `_build_object_rule`), because a model invents additional arguments if
//! the grammar allows them.
//!
//! JSON Schema itself allows other properties. If several schemas name the properties of an object (`allOf`, `$ref`
//! next to keywords, `anyOf` next to `properties`), the object is closed to all properties that none of these schemas
//! names.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::references;
use super::subschemas::{ANNOTATIONS, APPLICATORS, LISTS, MAPS, ONE, is_in};
use crate::decode::constraint::unenforced::Unenforced as Note;

/// Maximum number of names that may be added to a schema to close its objects, so that the schema stays bounded.
const MAX_NAMES: usize = 200_000;

type Members = Map<String, Value>;

/// Closes all objects of a schema whose references are plain.
pub(super) fn close_all(root: &mut Value) -> Result<(), Note> {
    let original = root.clone();
    let mut closer = Closer { original: &original, opened: Vec::new(), left: MAX_NAMES };
    closer.place(root, true)?;
    let mut added = Map::new();
    let mut done = 0;
    while let Some(reference) = closer.opened.get(done).cloned() {
        let mut copy = references::target(&original, &reference).cloned().unwrap_or(Value::Bool(true));
        if let Value::Object(members) = &mut copy {
            // The copy needs no definitions: the root still has them.
            members.retain(|keyword, _| !matches!(keyword.as_str(), "$defs" | "definitions" | "$id" | "id"));
        }
        closer.place(&mut copy, false)?;
        added.insert(open_name(done), copy);
        done += 1;
    }
    if let (Value::Object(members), false) = (root, added.is_empty()) {
        match members.entry("$defs").or_insert_with(|| Map::new().into()) {
            Value::Object(definitions) => definitions.extend(added),
            _ => return Err(Note::new("$defs", "it must be an object")),
        }
    }
    Ok(())
}

fn open_name(index: usize) -> String {
    format!("autoplace-open-{index}")
}

struct Closer<'a> {
    original: &'a Value,
    /// References whose targets describe only a part of an object. Each of them needs a copy of its target that is not
    /// closed.
    opened: Vec<String>,
    left: usize,
}

/// The properties that the schemas of an object name.
#[derive(Default, Clone)]
struct Said {
    names: Vec<String>,
    patterns: Vec<String>,
    /// Whether a schema has `additionalProperties`.
    of_others: bool,
}

impl Closer<'_> {
    /// Closes the schemas inside a schema. If no other schema describes the same value (`is_whole`), closes the schema
    /// itself too.
    fn place(&mut self, schema: &mut Value, is_whole: bool) -> Result<(), Note> {
        let Value::Object(members) = schema else { return Ok(()) };
        self.parts(members)?;
        let has = |keyword: &str| members.contains_key(keyword);
        let is_applied = ["$ref", "allOf", "anyOf", "oneOf"].into_iter().any(has);
        if !is_applied {
            return if is_whole { self.close(members) } else { Ok(()) };
        }
        let said = if is_whole { self.said(members) } else { Said::default() };
        let own = members.keys().filter(|key| !is_in(ANNOTATIONS, key) && *key != "type");
        let is_alone = own.count() == 1;
        if is_whole && (said.names.is_empty() || is_alone && !members.contains_key("allOf")) {
            // The schema consists of alternatives or of a reference. Each alternative, and the target, describes the
            // whole value.
            return self.applied(members, true);
        }
        if is_whole && !said.of_others {
            self.close_together(members)?;
        }
        self.applied(members, false)
    }

    /// Closes the schemas of the parts of a value: its properties and items.
    fn parts(&mut self, members: &mut Members) -> Result<(), Note> {
        for (keyword, value) in members.iter_mut().filter(|(keyword, _)| !is_in(APPLICATORS, keyword)) {
            match value {
                Value::Array(list) if is_in(LISTS, keyword) => {
                    list.iter_mut().try_for_each(|schema| self.place(schema, true))?;
                }
                Value::Object(map) if is_in(MAPS, keyword) => {
                    map.values_mut().try_for_each(|schema| self.place(schema, true))?;
                }
                value if is_in(ONE, keyword) => self.place(value, true)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Closes the schemas that apply to the same value: `allOf`, `anyOf`, `oneOf` and references.
    fn applied(&mut self, members: &mut Members, are_wholes: bool) -> Result<(), Note> {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = members.get_mut(keyword) {
                list.iter_mut().try_for_each(|schema| self.place(schema, are_wholes))?;
            }
        }
        if let (Some(Value::String(reference)), false) = (members.get_mut("$ref"), are_wholes) {
            let known = self.opened.iter().position(|opened| opened == reference);
            let index = known.unwrap_or_else(|| {
                self.opened.push(reference.clone());
                self.opened.len() - 1
            });
            *reference = format!("#/$defs/{}", open_name(index));
        }
        Ok(())
    }

    /// Closes an object that one schema describes completely.
    fn close(&mut self, members: &mut Members) -> Result<(), Note> {
        if !members.get("properties").is_some_and(Value::is_object) || members.contains_key("additionalProperties") {
            return Ok(());
        }
        let required = required(members);
        self.count(required.len())?;
        if let Some(Value::Object(properties)) = members.get_mut("properties") {
            for name in required {
                properties.entry(name).or_insert(Value::Bool(true));
            }
        }
        members.insert("additionalProperties".to_owned(), false.into());
        Ok(())
    }

    /// Closes an object that several schemas describe. Each alternative of a union is closed with its own names.
    fn close_together(&mut self, members: &mut Members) -> Result<(), Note> {
        let unions: Vec<&str> =
            ["anyOf", "oneOf"].into_iter().filter(|keyword| members.contains_key(*keyword)).collect();
        let [union] = unions[..] else {
            let closure = self.closure(self.said(members))?;
            push_all(members, closure);
            return Ok(());
        };
        let mut others = members.clone();
        others.shift_remove(union);
        let base = self.said(&others);
        if let Some(Value::Array(options)) = members.get_mut(union) {
            for option in options {
                let mut said = base.clone();
                self.add(option, &mut said, &mut HashSet::new());
                let closure = self.closure(said)?;
                match option {
                    Value::Object(option) => push_all(option, closure),
                    option if *option == Value::Bool(true) => *option = closure,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn closure(&mut self, said: Said) -> Result<Value, Note> {
        self.count(said.names.len() + said.patterns.len())?;
        let any = |names: Vec<String>| -> Members { names.into_iter().map(|name| (name, true.into())).collect() };
        let mut closure = json!({"properties": any(said.names), "additionalProperties": false});
        if !said.patterns.is_empty() {
            closure["patternProperties"] = any(said.patterns).into();
        }
        Ok(closure)
    }

    fn count(&mut self, names: usize) -> Result<(), Note> {
        let message = "too many properties are described by several schemas at once (`allOf`, `anyOf`, `$ref`)";
        self.left = self.left.checked_sub(names).ok_or_else(|| Note::new("", message))?;
        Ok(())
    }

    fn said(&self, members: &Members) -> Said {
        let mut said = Said::default();
        self.add_members(members, &mut said, &mut HashSet::new());
        said
    }

    fn add(&self, schema: &Value, said: &mut Said, seen: &mut HashSet<String>) {
        if let Value::Object(members) = schema {
            self.add_members(members, said, seen);
        }
    }

    fn add_members(&self, members: &Members, said: &mut Said, seen: &mut HashSet<String>) {
        said.of_others |= members.contains_key("additionalProperties");
        if let Some(Value::Object(properties)) = members.get("properties") {
            said.names.extend(properties.keys().cloned());
            said.names.extend(required(members));
        }
        if let Some(Value::Object(patterns)) = members.get("patternProperties") {
            said.patterns.extend(patterns.keys().cloned());
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let list = members.get(keyword).and_then(Value::as_array);
            list.into_iter().flatten().for_each(|schema| self.add(schema, said, seen));
        }
        if let Some(reference) = members.get("$ref").and_then(Value::as_str)
            && seen.insert(reference.to_owned())
            && let Some(target) = references::target(self.original, reference)
        {
            self.add(target, said, seen);
        }
    }
}

fn push_all(members: &mut Members, schema: Value) {
    if let Value::Array(all) = members.entry("allOf").or_insert_with(|| json!([])) {
        all.push(schema);
    }
}

fn required(members: &Members) -> Vec<String> {
    let names = members.get("required").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}
