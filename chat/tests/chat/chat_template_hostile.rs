//! Templates come from anybody: whatever one does, it is stopped with a typed error, in bounded time and memory.

use autoplace_chat::{ChatTemplate, Conversation, Error, Limit, Limits, Message};

/// Limits that are reached at once.
fn small() -> Limits {
    let mut limits = Limits::default();
    limits.steps = 200_000;
    limits.output_bytes = 1 << 20;
    limits
}

fn run(source: &str, limits: Limits) -> Result<String, Error> {
    let template = ChatTemplate::new(source, <_>::default())?.with_limits(limits);
    let conversation = Conversation::new(&[Message::user("hi")]);
    Ok(template.render(&conversation)?.into_string())
}

/// Which limit stops a template.
fn stopped(source: &str, limits: Limits) -> Limit {
    match run(source, limits) {
        Err(Error::Limit { limit, .. }) => limit,
        other => panic!("{}: {other:?}", shown(source)),
    }
}

fn shown(source: &str) -> String {
    source.chars().take(200).collect()
}

/// Of these templates, those that no limit stops.
fn unstopped(sources: &[String], limits: Limits) -> Vec<String> {
    let outcomes = sources.iter().map(|source| (source, run(source, limits)));
    let unstopped = outcomes.filter(|(_, outcome)| !matches!(outcome, Err(Error::Limit { .. })));
    unstopped.map(|(source, outcome)| format!("{}: {:?}", shown(source), outcome.map(|text| shown(&text)))).collect()
}

/// In a namespace `ns`, `s` becomes this 64 times.
fn repeated(begin: &str, then: &str) -> String {
    format!(
        "{{% set ns = namespace(s={begin}) %}}{{% for i in range(64) %}}{{% set ns.s = {then} %}}{{% endfor %}}{{{{ ns.s }}}}"
    )
}

/// A text `a` of so many bytes, and this.
fn with_text(bytes: usize, then: &str) -> String {
    format!("{{% set a = 'x' * {bytes} %}}{{% set b = 'x' * {bytes} %}}{then}")
}

/// This a hundred thousand times.
fn looped(body: &str) -> String {
    format!("{{% for i in range(100000) %}}{body}{{% endfor %}}")
}

/// Each grows without end, or searches much without end: by size of the texts that it begins with.
fn endless(bytes: usize) -> Vec<String> {
    let mut sources = vec![
        looped(&looped("")),
        looped(&looped(&"x".repeat(60))),
        looped(&format!("{{% set s %}}{}{{% endset %}}", looped("x"))),
        format!("{{% set s %}}{}{{% endset %}}", looped(&looped("0123456789"))),
        format!("{{% macro m() %}}{}{{% endmacro %}}{{{{ m() }}}}", looped(&looped(&"x".repeat(60)))),
    ];
    for (begin, then) in [
        ("'x'", "ns.s ~ ns.s"),
        ("'x'", "ns.s + ns.s"),
        ("'x'", "ns.s * 2"),
        ("'x'", "2 * ns.s"),
        ("'xy'", "[ns.s, ns.s] | join"),
        ("'xy'", "''.join([ns.s, ns.s])"),
        ("'xy'", "'%s%s' % (ns.s, ns.s)"),
        ("'xy'", "'%s%s' | format(ns.s, ns.s)"),
        ("'xy'", "'{0}{0}'.format(ns.s)"),
        ("'xy'", "ns.s | replace('x', 'xx')"),
        ("'xx'", "ns.s.replace('x', 'xx')"),
        ("'\"'", "ns.s | tojson"),
        ("'x'", "ns.s | indent(ns.s, true)"),
        ("'x'", "(ns.s | safe) + ns.s"),
        ("'ab'", "ns.s[:] ~ ns.s[::-1]"),
        ("[1]", "ns.s + ns.s"),
        ("(1,)", "ns.s + ns.s"),
        ("[1]", "ns.s * 2"),
        ("[1]", "[ns.s, ns.s]"),
        ("[1]", "(ns.s, ns.s)"),
        ("[1]", "{'a': ns.s, 'b': ns.s}"),
        ("[1]", "dict(a=ns.s, b=ns.s)"),
        ("[1]", "[ns.s, ns.s] | list"),
        ("[1]", "[ns.s, ns.s] | map('list') | list"),
    ] {
        sources.push(repeated(begin, then));
    }
    for then in [
        "{% if a == b %}{% endif %}",
        "{% if a < b %}{% endif %}",
        "{% if a <= b <= a %}{% endif %}",
        "{% if 'y' in a %}{% endif %}",
        "{% if a in [b, b] %}{% endif %}",
        "{{ 'y' is in(a) }}",
        "{{ a is eq(b) }}",
        "{{ a is lt(b) }}",
        "{{ a is lower }}",
        "{{ a[9] }}",
        "{{ a[-1] }}",
        "{% set c = a[1:] %}",
        "{{ a | length }}",
        "{% set c = a | upper %}",
        "{% set c = a | trim %}",
        "{% set c = a.strip() %}",
        "{{ a.startswith('y') }}",
        "{{ a.count('y') }}",
        "{{ a.find('y') }}",
        "{% set c = a.split('y') %}",
        "{% set c = a | list %}",
        "{% set c = {a: 1} %}",
        "{% set c = {'k': 1}.get(a) %}",
        "{% set c = [a, b] | unique | list %}",
        "{% set c = [a, b] | sort %}",
        "{% set c = [a, b] | map('upper') | list %}",
        "{% set c = [a, b] | select('eq', b) | list %}",
        "{% set c = [{'k': a}] | selectattr('k', 'eq', b) | list %}",
        "{% set c = [{'k': a}] | groupby('k') %}",
        "{{ [a].index(b) }}",
        "{{ [a].count(b) }}",
        "{{ loop.changed(a) }}",
        "{% for c in a %}{% break %}{% endfor %}",
    ] {
        sources.push(with_text(bytes, &looped(then)));
    }
    let times = bytes * 10;
    for source in [
        format!("{{{{ 'x' * {times}0000 }}}}"),
        "{{ 'x' * 10 ** 18 }}".to_owned(),
        "{{ [1] * 99999999 }}".to_owned(),
        "{{ ([[1] * 99999999] * 99999999) ~ '' }}".to_owned(),
        with_text(bytes, "{% set l = [a] * 9999999 %}{{ l | join }}"),
        with_text(bytes, "{{ a.replace('x', a).replace('x', a) }}"),
        with_text(bytes, "{{ a | replace('x', a) | replace('x', a) }}"),
        with_text(bytes, "{{ a | list | join(a) }}"),
        with_text(bytes, "{{ a.join(a | list) }}"),
        with_text(bytes, "{{ [[[1, 2], 3], 4] | tojson(indent=a) * 1000 }}"),
        with_text(bytes, "{{ range(9999) | list | tojson(separators=(a, a)) }}"),
        with_text(bytes, &format!("{{{{ '{}'.format(a) * 999 }}}}", "{0}".repeat(9999))),
        with_text(bytes, &format!("{{{{ '{}' % {{'a': a}} * 999 }}}}", "%(a)s".repeat(9999))),
    ] {
        sources.push(source);
    }
    sources
}

#[test]
fn what_grows_or_searches_without_end_is_stopped_at_a_limit() {
    assert_eq!(unstopped(&endless(20_000), small()), [""; 0]);
}

#[test]
fn the_default_limits_stop_it_too() {
    // Each of them takes a third of a second.
    let some: Vec<String> = endless(2_000_000).into_iter().step_by(3).collect();
    assert_eq!(unstopped(&some, Limits::default()), [""; 0]);
}

#[test]
fn what_a_filter_makes_of_one_item_is_counted_before_the_next() {
    for filter in ["'batch', 9000, 1", "'format', 1", "'indent', 9000, true", "'slice', 9000"] {
        let source = format!("{{% set l = ['%9000d'] * 2000 %}}{{% set made = l | map({filter}) | list %}}");
        let limit = stopped(&source, small());
        assert!(matches!(limit, Limit::Steps(_)), "{filter}: {limit}");
    }
}

#[test]
fn values_within_values_are_bounded_wherever_they_are_made() {
    for then in [
        "[ns.s]",
        "(ns.s,)",
        "{'a': ns.s}",
        "dict(a=ns.s)",
        "[ns.s] | list",
        "[[ns.s]] | first",
        "[ns.s] | batch(1) | list",
        "[ns.s] | map('list') | list",
        "{'a': ns.s}.items()",
        "{'a': ns.s} | items | list",
        "{'a': ns.s}.values()",
    ] {
        let source = format!(
            "{{% set ns = namespace(s=['x']) %}}{{% for i in range(1000) %}}{{% set ns.s = {then} %}}{{% endfor %}}"
        );
        let limit = stopped(&source, Limits::default());
        assert!(matches!(limit, Limit::Nesting(_)), "{then}: {limit}");
    }
}

#[test]
fn a_namespace_keeps_nothing_that_could_hold_itself() {
    for value in ["ns", "[ns]", "{'a': ns}", "m", "[m]", "cycler(1)", "namespace()", "range"] {
        let source = format!(
            "{{% macro m() %}}{{% endmacro %}}{{% set ns = namespace() %}}{{% for i in [1] %}}{{% set ns.x = {value} %}}{{% endfor %}}"
        );
        let error = run(&source, small()).unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{value}: {error}");
        assert!(error.to_string().contains("keep data"), "{error}");
    }
}

#[test]
fn a_loop_is_no_value_that_could_hold_itself() {
    for use_of_it in [
        "{% set x = loop %}",
        "{{ loop.changed(loop) }}",
        "{{ [loop] }}",
        "{{ loop | items }}",
        "{{ loop.cycle() }}",
        "{{ loop.cycle(*[]) }}",
        "{{ x.loop and loop }}",
    ] {
        let source = format!("{{% for i in [1] %}}\n{use_of_it}{{% endfor %}}");
        let error = run(&source, small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 2, .. }), "{use_of_it}: {error}");
    }
}

/// Values as deep as they get, used in every way that recurses over them.
#[test]
fn the_deepest_values_fit_the_stack() {
    let uses = [
        "{{ x }}",
        "{{ x ~ '' }}",
        "{{ x | tojson }}",
        "{{ x == y }}",
        "{{ x < y }}",
        "{{ x in [y] }}",
        "{% set d = {x: 1, y: 2} %}",
        "{{ [x, y] | sort }}",
        "{{ [x, y] | unique | list }}",
        "{{ [x] | join }}",
        "{{ '%s' % [x] }}",
        "{% for i in x %}{% endfor %}",
        "{{ x[0] is defined }}",
    ];
    let lazy = "[0:]".repeat(110);
    for deeper in ["[x]", "(x,)", "{'a': x}", "[{'a': x, 'b': 1}] | groupby('b') | list"] {
        // As many as there may be: one more is an error.
        let levels = if deeper.contains("groupby") { 48 } else { 197 };
        for use_of_it in uses {
            let deep = deeper.replace('x', "ns.x");
            let source = format!(
                "{{% set ns = namespace(x=[1]) %}}{{% for i in range({levels}) %}}{{% set ns.x = {deep} %}}{{% endfor %}}\
                 {{% set x = ns.x %}}{{% set y = ns.x %}}{use_of_it}{{% if [ns.x{lazy}] == [y{lazy}] %}}{{% endif %}}"
            );
            match run(&source, Limits::default()) {
                Ok(_) | Err(Error::Failed { .. }) => {}
                Err(error) => panic!("{deeper}, {use_of_it}: {error}"),
            }
        }
    }
}

#[test]
fn no_number_hides_what_follows_it_from_the_guards() {
    for source in [
        "{{ 1. in [x, x] }}",
        "{{ 1.e5in [x, x] }}",
        "{{ 1e5in [x, x] }}",
        "{{ 0x1for [x, x] }}",
        "{{ 1_in [x, x] }}",
        "{{ 1if x else[x, x] }}",
        "{{ __kept([x, x]) }}",
        "{% macro __tick() %}{% endmacro %}",
    ] {
        let error = run(source, small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 1, .. }), "{source}: {error}");
    }
}

#[test]
fn calls_within_calls_are_bounded() {
    for source in [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% macro f() %}{{ caller() }}{% call f() %}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}",
    ] {
        let limit = stopped(source, small());
        assert!(matches!(limit, Limit::Calls(_)), "{source}: {limit}");
    }
}

/// What nests in a source: before it, each opening, within, each closing, behind; and how often it is let through.
const NESTED: [(&str, &str, &str, &str, &str, usize); 19] = [
    ("{{ ", "(", "1", ")", " }}", 70),
    ("{{ ", "[", "", "]", " }}", 70),
    ("{{ ", "{1:", "1", "}", " }}", 40),
    ("{{ ", "not ", "1", "", " }}", 990),
    ("{{ ", "-", "1", "", " }}", 990),
    ("{{ 1", " ~ 1", "", "", " }}", 490),
    ("{{ 1", " + 1", "", "", " }}", 490),
    ("{{ 1", " if 1 else 1", "", "", " }}", 240),
    ("{{ messages", ".a", "", "", " }}", 490),
    ("{{ messages", "[0:]", "", "", " }}", 240),
    ("{{ 'a'", "|e", "", "", " }}", 490),
    ("{{ dict", "()", "", "", " }}", 240),
    ("{{ 1", " is eq 1", "", "", " }}", 240),
    ("{% if 0 %}", "{% elif 0 %}", "", "", "{% endif %}", 490),
    ("", "{% if 1 %}", "", "{% endif %}", "", 140),
    ("", "{% for x in [1] %}", "", "{% endfor %}", "", 90),
    ("", "{% set x %}", "", "{% endset %}", "", 90),
    ("", "{% macro m() %}", "", "{% endmacro %}", "", 90),
    ("{% set ", "(", "a", ")", " = 1 %}", 490),
];

#[test]
fn a_source_nests_as_deep_as_fits_the_stack_and_no_deeper() {
    for (before, open, within, close, behind, deepest) in NESTED {
        let source = |times: usize| format!("{before}{}{within}{}{behind}", open.repeat(times), close.repeat(times));
        // What is no template otherwise is one of the parser's errors.
        match run(&source(deepest), small()) {
            Ok(_) | Err(Error::Failed { .. }) => {}
            Err(Error::Syntax { reason, .. }) if reason.contains("recursion") => {}
            Err(error) => panic!("{}: {error}", shown(&source(deepest))),
        }
        let error = run(&source(20_000), small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { .. }), "{}: {error}", shown(&source(20_000)));
    }
    let long = "x".repeat((1 << 20) + 1);
    assert!(matches!(stopped(&long, small()), Limit::SourceBytes(_)));
}

#[test]
fn widths_and_counts_make_no_much_of_little() {
    for source in [
        "{{ 'a\nb' | indent(10 ** 9) }}",
        "{{ '%1000000000s' | format('x') }}",
        "{{ '%*s' % (1000000000, 'x') }}",
        "{{ '%.*f' % (1000000000, 1.0) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ '{:>{}}'.format('x', 1000000000) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x'.rjust(10 ** 9, 'y') }}",
        "{{ '1'.zfill(10 ** 9) }}",
        "{{ [1] | batch(10 ** 9, 0) | list }}",
        "{{ [1] | slice(10 ** 9, 0) | list }}",
        "{{ range(10 ** 9) }}",
        "{{ [1] * 10 ** 18 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ strftime_now('%9999999999d') }}",
        "{{ strftime_now('x' * 2000) }}",
        "{% set l = {'cycle': 1} %}{{ l.cycle(1) }}",
        "{{ [1][::0] }}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
    ] {
        let error = run(source, small()).unwrap_err();
        let is_stopped = matches!(error, Error::Failed { .. } | Error::Limit { .. });
        assert!(is_stopped, "{source}: {error}");
    }
}

#[test]
fn a_template_reaches_nothing_but_the_conversation() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% include 'chat template' %}",
        "{% include ['a', 'b'] ignore missing %}",
        "{% import '/etc/passwd' as x %}",
        "{% from 'chat template' import x %}",
        "{% extends 'chat template' %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{% set messages.x = 1 %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ debug() }}",
    ] {
        let error = run(source, small()).unwrap_err();
        let is_refused = matches!(error, Error::Failed { .. } | Error::Syntax { .. });
        assert!(is_refused, "{source}: {error}");
    }
}
