//! With our guards, every construct of the language means the same as in jinja2.

use autoplace_chat::{ChatTemplate, Conversation, Error};
use serde_json::json;

fn render(source: &str) -> Result<String, Error> {
    let template = ChatTemplate::new(source, <_>::default())?;
    let conversation = Conversation::from_json(Vec::new())
        .variable("l", json!([1, 2, 3]))
        .variable("d", json!({"a": {"b": 1}, "k": [1]}));
    Ok(template.render(&conversation)?.into_string())
}

/// Sources with ends of lines and escaped characters, each with jinja2's output.
const ESCAPES: &[(&str, &str)] = &[
    (r#"{{ 'a\'b"\n\\\t' }}|{{ "a'b\"" }}"#, "a'b\"\n\\\t|a'b\""),
    ("a } }} %} #} b\n\n", "a } }} %} #} b\n"),
    ("{ { {\n", "{ { {"),
    ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
    ("  {%+ if true %}x{% endif +%}\nb", "  x\nb"),
    ("a\r\nb\rc{{ '\r\n' | length }}", "a\nb\nc1"),
    ("{{ 'a\nb' }}{{ '\t\u{1}é\u{2028}😀{{}}' }}", "a\nb\t\u{1}é\u{2028}😀{{}}"),
    (
        "{% set s | upper | replace('A', 'b') %}a text that is long enough: {{ 1 }} { {% endset %}{{ s }}",
        "b TEXT THbT IS LONG ENOUGH: 1 { ",
    ),
];

#[test]
fn every_construct_means_the_same_with_guards_as_in_jinja2() {
    let lines = include_str!("chat_template_constructs.txt").lines();
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("# ")).collect();
    let (pairs, _) = lines.as_chunks::<2>();
    assert_eq!(pairs.len(), 100);
    let expected = |line: &'static str| line.strip_prefix("=> ").expect(line);
    let pairs = pairs.iter().map(|[source, line]| (*source, expected(line)));
    for (source, expected) in pairs.chain(ESCAPES.iter().copied()) {
        match render(source) {
            Ok(text) => assert_eq!(text, expected, "{source:?}"),
            Err(error) => assert_eq!(expected, "error", "{source:?}: {error}"),
        }
    }
}

#[test]
fn an_error_names_the_line_of_the_source() {
    for (line, source) in [
        (3, "{% set x = 1 %}\n{# a\n#}{{ x.y.z }}"),
        (6, "a {\n\n{%- raw %}\n{%\n{% endraw %}\n{{ 1 + '' }}"),
        (3, "{{ [\n1,\n1 + '',\n2] }}"),
        (2, "{% for x in l %}\n{{ x | nothing }}\n{% endfor %}"),
        (3, "{% macro m() %}\n'{'\n{{ 1 - '' }}{% endmacro %}\n{{ m() }}"),
        (2, "\n{% do x() %}"),
        (2, "\n{% autoescape true %}{% endautoescape %}"),
        (3, "\n\n{% if %}"),
    ] {
        let error = render(source).unwrap_err();
        let found = match error {
            Error::Syntax { line, .. } | Error::Failed { line, .. } => line,
            other => panic!("{source}: {other}"),
        };
        assert_eq!(found, line, "{source}");
    }
}

#[test]
fn a_list_that_a_template_writes_can_be_changed_and_one_of_the_conversation_cannot() {
    let queue = "{% set q = namespace(ids=[]) %}{% for x in l %}{% set _ = q.ids.append('f:' ~ x) %}{% endfor %}";
    let taken = "{% for x in l if q.ids %}{{ q.ids.pop(0) }};{% endfor %}{{ q.ids }}";
    assert_eq!(render(&format!("{queue}{taken}")).unwrap(), "f:1;f:2;f:3;[]");
    // Appending stores a copy. So a list never contains itself.
    assert_eq!(render("{% set x = [1] %}{% set _ = x.append(x) %}{{ x }}").unwrap(), "[1, [1]]");
    for source in ["{{ l.append(1) }}", "{{ d.k.pop() }}", "{{ d.update({}) }}"] {
        let error = render(source).unwrap_err().to_string();
        assert!(error.contains("unsafe"), "{error}");
    }
}
