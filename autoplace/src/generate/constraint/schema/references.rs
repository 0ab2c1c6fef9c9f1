//! `$ref`s as llguidance follows them: from the root, by names without escapes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::size::MAX_BYTES;

/// Different targets of `$ref`: llguidance follows a chain of them by recursion.
const MAX_REFERENCES: usize = 2000;

/// Keywords that hold data, which is not searched for references.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Puts a copy of each schema that is referred to from elsewhere than `$defs` and `definitions`, or by an escaped name,
/// into `$defs`, and refers to that. What is referred to is then in a place where schemas are expected.
pub(super) fn plain(schema: &mut Value) -> Result<(), String> {
    let mut names = BTreeMap::new();
    collect(schema, true, false, &mut names)?;
    if names.len() > MAX_REFERENCES {
        let count = names.len();
        return Err(format!("it refers to {count} schemas, at most {MAX_REFERENCES}"));
    }
    let mut copies = Vec::new();
    let mut bytes = 0;
    for (index, (reference, name)) in names.iter_mut().enumerate() {
        let pointer = pointer(reference)?;
        let target = schema.pointer(&pointer).ok_or_else(|| format!("`$ref`: {reference:?} refers to nothing"))?;
        let is_plain = match pointer.split('/').collect::<Vec<_>>()[..] {
            [""] => true,
            ["", "$defs" | "definitions", definition] => {
                format!("#{pointer}") == *reference && !definition.contains('~')
            }
            _ => false,
        };
        if is_plain {
            name.clone_from(reference);
            continue;
        }
        bytes += target.to_string().len();
        if bytes > MAX_BYTES {
            let most = MAX_BYTES >> 10;
            return Err(format!("it refers to schemas of more than {most} KiB"));
        }
        let definition = format!("reference {index}");
        *name = format!("#/$defs/{definition}");
        copies.push((definition, target.clone()));
    }
    if let (Some(root), false) = (schema.as_object_mut(), copies.is_empty()) {
        super::definitions(root)?.extend(copies);
    }
    rename(schema, &names);
    Ok(())
}

/// The JSON pointer that a reference within the schema is.
fn pointer(reference: &str) -> Result<String, String> {
    let pointer = reference.strip_prefix('#').map(unescaped);
    pointer.filter(|it| it.is_empty() || it.starts_with('/')).ok_or_else(|| {
        format!("`$ref`: {reference:?} is not a reference from the schema's root, as \"#/$defs/name\" is")
    })
}

/// The bytes that the percent signs of a URI's fragment stand for.
fn unescaped(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|it| str::from_utf8(it).ok());
        let byte = digits.and_then(|it| u8::from_str_radix(it, 16).ok());
        match byte.filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// All references, each without a name yet. `has_base`: a schema around this one has an `$id`, from which its
/// references would start.
fn collect(value: &Value, is_root: bool, has_base: bool, names: &mut BTreeMap<String, String>) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| collect(item, false, has_base, names)),
        Value::Object(members) => {
            let is_text = |keyword: &str| members.get(keyword).is_some_and(Value::is_string);
            let has_base = has_base || (!is_root && (is_text("$id") || is_text("id")));
            if let Some(Value::String(reference)) = members.get("$ref") {
                if has_base {
                    return Err(format!("`$ref`: {reference:?} is within a schema that has an `$id` of its own"));
                }
                names.insert(reference.clone(), String::new());
            }
            members
                .iter()
                .filter(|(keyword, _)| !DATA.contains(&keyword.as_str()))
                .try_for_each(|(_, member)| collect(member, false, has_base, names))
        }
        _ => Ok(()),
    }
}

fn rename(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        Value::Object(members) => {
            for (keyword, member) in members {
                match member {
                    Value::String(reference) if keyword == "$ref" => {
                        if let Some(name) = names.get(reference) {
                            reference.clone_from(name);
                        }
                    }
                    _ if DATA.contains(&keyword.as_str()) => {}
                    _ => rename(member, names),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::plain;

    #[test]
    fn a_schema_is_referred_to_from_wherever_it_is() {
        let node = json!({"type": "object", "properties": {"next": {"$ref": "#/a~1b/x%20y"}}});
        let mut schema = json!({
            "items": {"$ref": "#/$defs/plain"},
            "prefixItems": [{"$ref": "#/a~1b/x%20y"}, {"$ref": "#"}],
            "$defs": {"plain": true, "has space": false},
            "contains": {"$ref": "#/$defs/has%20space"},
            "const": {"$ref": "data"},
            "a/b": {"x y": node},
        });
        plain(&mut schema).unwrap();
        let to = |place: &Value| schema.pointer(&place["$ref"].as_str().unwrap()[1..]).cloned();
        assert_eq!(schema["items"]["$ref"], "#/$defs/plain");
        assert_eq!(schema["prefixItems"][1]["$ref"], "#");
        assert_eq!(schema["const"]["$ref"], "data");
        assert_eq!(to(&schema["contains"]), Some(json!(false)));
        let copied = to(&schema["prefixItems"][0]).unwrap();
        assert_eq!(copied["type"], "object");
        assert_eq!(copied["properties"]["next"], schema["prefixItems"][0]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let many: Vec<Value> = (0..200).map(|i| json!({"$ref": format!("#/x/{i}/..")})).collect();
        for (mut schema, why) in [
            (json!({"$ref": "#/nowhere"}), "\"#/nowhere\" refers to nothing"),
            (json!({"items": {"$ref": "#anchor"}}), "not a reference from the schema's root"),
            (json!({"$ref": "other.json#/$defs/a"}), "not a reference from the schema's root"),
            (json!({"items": {"$id": "x", "not": {"$ref": "#"}}}), "`$id` of its own"),
            (json!({"allOf": many, "x": vec![json!({"..": "x".repeat(10_000)}); 200]}), "more than 1024 KiB"),
        ] {
            let said = plain(&mut schema).unwrap_err();
            assert!(said.contains(why), "{schema}: {said}");
        }
    }
}
