//! Every construct of the language means with the guards that a template's source gets what it means in jinja2.

use autoplace_chat::{ChatTemplate, Conversation, Error};
use serde_json::json;

fn render(source: &str) -> Result<String, Error> {
    let template = ChatTemplate::new(source, <_>::default())?;
    let conversation = Conversation::from_json(Vec::new())
        .variable("l", json!([1, 2, 3]))
        .variable("d", json!({"a": {"b": 1}, "k": [1]}));
    Ok(template.render(&conversation)?.into_string())
}

/// What jinja2 makes of each construct: its source, and `=> ` what it says.
const CONSTRUCTS: &str = r#"
# What jinja2 makes of each construct.
# Text, and what could be taken for a tag.
{{ '{{' }}{{ '{%' ~ '{#' }}{
=> {{{%{#{
{% raw %}{{ x }} {% y %} {# z #}{% endraw %}
=> {{ x }} {% y %} {# z #}
{% raw %}{{{% endraw %}{{ 1 }}}
=> {{1}
a {# {{ x }} #} b{#- c -#} d
=> a  bd
a  {{- 1 -}}  b {%- if 1 -%} c {%- endif -%} d
=> a1bcd
# Operators and how strongly they bind.
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 2 - (3 - 4) }} {{ 10 - 3 - 2 }} {{ 2 * 3 % 4 }}
=> 3 9 3 5 2
{{ 8 / 2 / 2 }} {{ 7 // 2 }} {{ 7 // (4 // 2) }} {{ 2 ** 3 }} {{ -2 ** 2 }} {{ -7 % 3 }}
=> 2.0 3 3 8 4 2
{{ 1 ~ 2 ~ 3 + 4 }} {{ 'a' ~ 1 + 2 }} {{ 'a' + 'b' ~ 'c' }}
=> error
{{ 1 ~ 2 * 3 ~ none ~ x }}|{{ 'a' ~ ('b' ~ 'c') }}
=> 16None|abc
{{ 'a' + 'b' + 'c' }} {{ [1] + [2] + [3] }} {{ (1,) + (2,) }} {{ 'ab' * 2 }} {{ 2 * [0] }}
=> abc [1, 2, 3] (1, 2) abab [0, 0]
{{ '%s-%s' % (1, 'a') }} {{ '%s' % 'b' ~ 'c' }} {{ 7 % 4 }}
=> 1-a bc 3
{{ not 1 == 2 }} {{ not (1 and 0) }} {{ not not 1 }} {{ not 1 in [1] }} {{ 1 not in [1] }}
=> True True True False False
{{ 1 and 2 or 3 }} {{ 0 and 1 or 3 }} {{ 1 or 0 and 0 }} {{ (1 or 0) and 0 }} {{ 0 or '' or 'z' }}
=> 2 3 1 0 z
{{ 1 < 2 }} {{ 2 >= 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1 in [1] }} {{ 'a' != 'b' }}
=> True True True False True True
{{ -1 }} {{ - 1 }} {{ -l[0] }} {{ -3 | abs }} {{ 2 - -1 }} {{ 1 --1 }}
=> -1 -1 -1 3 3 2
{{ 'a' if 1 else 'b' }} {{ 'a' if 0 else 'b' if 0 else 'c' }} {{ ('a' if 0) ~ 'n' }} {{ 1 + (2 if 0 else 3) }}
=> a c n 4
{{ ('a' if 1 else 'b') if 0 else 'c' }} {{ [1 if 1 else 2, 3] }} {{ 'x' if 1 or 0 else 'y' }}
=> c [1, 3] x
# Calls whose arguments are unpacked, tests without brackets, floats.
{{ dict(a=1, **{'b': 2}) }} {{ 'ab'.replace(*['a', 'b']) }} {{ range(*[1, 3]) | list }} {{ l[l[0]] }} {{ 'abc'[1:][0] }}
=> {'a': 1, 'b': 2} bb [1, 2] 2 b
{{ 4 is divisibleby 2 and 1 }} {{ 'a' | upper is eq 'A' }} {{ 1 is not in [] }} {{ not x is defined }} {{ 'a' ~ 'b' | upper }}
=> 1 True True True aB
{{ 0.0001 }} {{ 0.00001 }} {{ 1e15 }} {{ -2.5 }} {{ 1e200 * 1e200 }} {{ 1.5e300 }}
=> 0.0001 1e-05 1000000000000000.0 -2.5 inf 1.5e+300
# Statements.
{% for x in [[1, [2]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}
=> 12
{% for x in (l if 1 else []) %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{% endfor %}
=> aTruebTrueaTrue
{% if 0 %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}{% if 0 %}a{% else %}{% if 1 %}e{% endif %}{% endif %}
=> ce
{% if 1 %}{% else %}{% if 0 %}{% else %}x{% endif %}y{% endif %}z
=> z
{% set a = 1 %}{% set b, c = 2, 3 %}{% set (e, f) = (4, 5) %}{% set t = 1, %}{{ a }}{{ b }}{{ c }}{{ e }}{{ f }}{{ t }}
=> 12345(1,)
{% macro m(a, b='x', c=[1]) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m(b=3, a=4) | upper }}
=> 1x[1]1x243[1]
{% macro m(a) %}[{{ caller(a, 2) }}]{% endmacro %}{% call(x, y) m(1) %}{{ x }}{{ y }}{% endcall %}
=> [12]
{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}a much longer text{% endcall %}
=> a much longer text
# Where the guards go.
{{ [1, 2][0] }}{{ {'a': 1}.a }}{{ (1, 2)[1] }}{{ [[1, 2], [3]][0][1] }}{{ {'a': 1}.items() | list }}
=> 1122[('a', 1)]
{{ 3 * 2 + 1 - 4 * -2 }} {{ 2 * 3 ~ 4 * 5 }} {{ 7 // 2 * 2 }} {{ 7 % 4 * 2 }} {{ 2 ** 3 * 2 }}
=> 15 620 6 6 16
{{ 'x' is in ['x'] ~ '' }} {{ not 'a' + 'b' == 'ab' }} {{ 2 not in [1] + [3] }} {{ 3 is not none ~ 'a' }}
=> True False True Truea
{{ dict(a=1 * 2, b='x' ~ 'y', **{'c': [1] + [2]}) }} {{ 'ab'[0 + 1:] ~ 'c'[::-1] }} {{ l[-1 * 1] }}
=> {'a': 2, 'b': 'xy', 'c': [1, 2]} bc 3
{% macro m(a, b='x' ~ 'y', c=[1] + [2]) %}{{ a ~ b ~ c }}{% endmacro %}{{ m('%s-%s' % (1, 2) ~ 'z', b=3 * 3) }}
=> 1-2z9[1, 2]
{% for x in l * 2 if x * 2 > 2 recursive %}{{ x }}{% endfor %}{% for k, v in {'a': 1}.items() if v * 2 %}{{ k ~ v }}{% endfor %}
=> 2323a1
{% set f = l | select('gt', 9) %}{{ 'true' if f else 'false' }}{{ f | list }}{{ 'a' | upper | lower ~ 'x' | upper }}
=> true[]aX
{{ '<b>' | safe + '<c>' }}{{ 'n: %05.2f' % 3.14159 + '!' }}{{ '%d%%' % 5 }}{{ '%s' % 'a' * 2 }}
=> <b>&lt;c&gt;n: 03.14!5%aa
{% generation %}a{% set z = 1 %}{% endgeneration %}{{ z is defined }}{%- generation -%} b {%- endgeneration -%} c
=> aFalsebc
"#;

/// The same of what has ends of lines and other characters that are written as escapes.
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
fn every_construct_does_with_its_guards_what_it_does_in_jinja2() {
    let lines: Vec<&str> = CONSTRUCTS.lines().filter(|line| !line.starts_with("# ")).collect();
    let (pairs, _) = lines[1..].as_chunks::<2>();
    assert_eq!(pairs.len(), 37);
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
