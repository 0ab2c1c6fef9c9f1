//! Counts the ways in which a value may begin, and the copies that llguidance makes to find these ways.
//!
//! llguidance merges the schemas that apply to one value (`allOf`, keywords next to `$ref` or `anyOf`) and copies them
//! for each alternative and property without a limit: a schema of 64 KiB took 2 GiB, and a schema of 256 KiB ended the
//! process. The time of one step of llguidance's parser is cubic in the number of alternatives of a value: 5,000 took
//! minutes. The copies and the alternatives are therefore counted first.

use serde_json::{Map, Value};

use super::subschemas::{ANNOTATIONS, STRUCTURE, is_in, is_own, subschemas};

/// Maximum number of copied values (about 200 bytes each) and visited alternatives.
const MAX_COPIES: usize = 500_000;
/// Maximum number of properties that may come first in a value, plus three for each array or object that the value may
/// be. llguidance makes four items for each of these properties.
const MAX_BEGINNINGS: usize = 1100;
/// Maximum nesting of references, alternatives and properties. llguidance's own limit is 128.
const MAX_DEPTH: usize = 256;

type Members = Map<String, Value>;

/// Refuses a schema over the limits. The references of the schema must be plain.
pub(super) fn check(root: &Value) -> Result<(), String> {
    let mut left = MAX_COPIES;
    let mut rest = vec![root];
    while let Some(schema) = rest.pop() {
        if let Value::Object(members) = schema {
            if !is_reference(members) {
                let mut place = Place { root, left, beginnings: 0 };
                place.hold(vec![schema], Laid::default(), MAX_DEPTH)?;
                left = place.left;
            }
            rest.extend(subschemas(members));
        }
    }
    Ok(())
}

struct Place<'a> {
    root: &'a Value,
    left: usize,
    beginnings: usize,
}

/// The schemas that apply together to a place.
#[derive(Clone, Default)]
struct Laid<'a> {
    schemas: Vec<&'a Members>,
    references: Vec<&'a str>,
    choices: Vec<&'a [Value]>,
    listed: usize,
}

impl<'a> Place<'a> {
    fn count(&mut self, copies: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(copies).ok_or(
            "too many combinations of its schemas apply at once (`allOf`, keywords beside `$ref`, `anyOf` or `enum`)",
        )?;
        Ok(())
    }

    /// Visits the alternatives of a place to which the schemas in `more` apply in addition.
    fn hold(&mut self, mut more: Vec<&'a Value>, mut laid: Laid<'a>, depth: usize) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or("its references and alternatives are nested without end")?;
        loop {
            while let Some(schema) = more.pop() {
                let Value::Object(members) = schema else { continue };
                if own(members).next().is_some() {
                    laid.schemas.push(members);
                }
                for (keyword, value) in members {
                    match (keyword.as_str(), value) {
                        ("$ref", Value::String(reference)) => laid.references.push(reference),
                        ("allOf", Value::Array(all)) => more.extend(all),
                        ("anyOf" | "oneOf", Value::Array(options)) => laid.choices.push(options),
                        ("enum", Value::Array(values)) => laid.listed += values.len(),
                        _ => {}
                    }
                }
            }
            let Some(reference) = laid.references.pop() else { break };
            self.count(1)?;
            more.extend(self.root.pointer(reference.trim_start_matches('#')));
        }
        let Some(options) = laid.choices.pop() else {
            return self.be(&laid.schemas, laid.listed, depth);
        };
        let copied: usize = laid.schemas.iter().map(|schema| size(schema)).sum();
        options.iter().try_for_each(|option| {
            self.count(1 + copied)?;
            self.hold(vec![option], laid.clone(), depth)
        })
    }

    /// Counts one alternative: an array or object to which all these schemas apply. `listed` is the number of values
    /// that an `enum` allows for it.
    fn be(&mut self, schemas: &[&'a Members], listed: usize, depth: usize) -> Result<(), String> {
        if !schemas.iter().any(|schema| is_structure(schema)) {
            return Ok(());
        }
        self.beginnings += 3 + schemas.iter().map(|schema| first_properties(schema)).sum::<usize>();
        if self.beginnings > MAX_BEGINNINGS {
            return Err(format!(
                "a value in it may begin in more than {MAX_BEGINNINGS} ways: alternatives, and their properties"
            ));
        }
        let is_laid = schemas.len() > 1;
        let copies = listed + usize::from(is_laid);
        self.count(copies * schemas.iter().map(|schema| size(schema)).sum::<usize>())?;
        let of = |keyword: &'static str| schemas.iter().filter_map(move |members| members.get(keyword));
        for pattern in of("patternProperties").filter_map(Value::as_object).flat_map(Map::values) {
            for property in of("properties").filter_map(Value::as_object).flat_map(Map::values) {
                self.parts([pattern, property].into_iter(), depth)?;
            }
        }
        if !is_laid {
            return Ok(());
        }
        let names = of("properties").filter_map(Value::as_object).flat_map(Map::keys);
        for name in names {
            let property = |members: &&'a Members| {
                members.get("properties").and_then(|map| map.get(name)).or_else(|| members.get("additionalProperties"))
            };
            self.parts(schemas.iter().filter_map(property), depth)?;
        }
        let tuple = |members: &&'a Members| {
            ["prefixItems", "items"].iter().find_map(|keyword| members.get(*keyword)?.as_array())
        };
        let longest = schemas.iter().filter_map(tuple).map(Vec::len).max().unwrap_or(0);
        for at in 0..=longest {
            let item = |members: &&'a Members| {
                tuple(members)
                    .and_then(|items| items.get(at))
                    .or_else(|| members.get("additionalItems"))
                    .or_else(|| members.get("items"))
            };
            self.parts(schemas.iter().filter_map(item), depth)?;
        }
        self.parts(of("additionalProperties"), depth)
    }

    /// Visits a part of the value that several schemas describe.
    fn parts(&mut self, schemas: impl Iterator<Item = &'a Value>, depth: usize) -> Result<(), String> {
        let schemas: Vec<_> = schemas.collect();
        self.count(schemas.iter().map(|schema| values(schema)).sum())?;
        if schemas.len() < 2 {
            return Ok(());
        }
        let outer = std::mem::take(&mut self.beginnings);
        self.hold(schemas, Laid::default(), depth)?;
        self.beginnings = outer;
        Ok(())
    }
}

/// The keywords that constrain the value itself.
fn own(members: &Members) -> impl Iterator<Item = &Value> {
    members.iter().filter(|(keyword, _)| is_own(keyword)).map(|(_, value)| value)
}

/// Whether the schema is a plain reference, which is checked at its target.
fn is_reference(members: &Members) -> bool {
    members.contains_key("$ref") && members.keys().all(|key| key == "$ref" || is_in(ANNOTATIONS, key))
}

fn is_structure(members: &Members) -> bool {
    STRUCTURE.split(' ').any(|keyword| members.contains_key(keyword))
        || match members.get("type") {
            Some(Value::Array(names)) => names.iter().any(|name| name == "array" || name == "object"),
            name => name.is_some_and(|name| name == "array" || name == "object"),
        }
}

/// The number of properties with which an object may begin.
fn first_properties(members: &Members) -> usize {
    let Some(Value::Object(properties)) = members.get("properties") else { return 0 };
    let required = members.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|required| required == name));
    properties.keys().position(is_required).map_or(properties.len(), |at| at + 1)
}

/// Number of entries in a list or map.
pub(super) fn length(value: &Value) -> usize {
    value.as_object().map_or(value.as_array().map_or(0, Vec::len), Map::len)
}

fn size(members: &Members) -> usize {
    own(members).map(values).sum()
}

/// Number of values in a value, including itself.
pub(super) fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(members) => members.values().map(values).sum(),
        _ => 0,
    }
}
