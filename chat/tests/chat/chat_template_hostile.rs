//! A template may come from anybody. A hostile template is stopped, with a typed error, within limits of time and
//! memory.

use autoplace_chat::{ChatTemplate, Conversation, Error, Limit, Limits, Message};

use test_support::table;

/// The lines below a heading in the file. They are hostile templates, or parts of such templates.
fn under(heading: &str) -> impl Iterator<Item = &'static str> {
    table::under(include_str!("chat_template_hostile.txt"), heading).lines().filter(|line| !line.is_empty())
}

/// Limits that are soon reached.
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

/// The limit by which a template is stopped.
fn stopped(source: &str, limits: Limits) -> Limit {
    let shown = |text: &str| text.chars().take(200).collect::<String>();
    match run(source, limits) {
        Err(Error::Limit { limit, .. }) => limit,
        other => panic!("{}: {:?}", shown(source), other.map(|text| shown(&text))),
    }
}

/// A template that sets the variable `s` of a namespace `ns` to `then`, 64 times.
fn repeated(begin: &str, then: &str) -> String {
    format!(
        "{{% set ns = namespace(s={begin}) %}}{{% for i in range(64) %}}{{% set ns.s = {then} %}}{{% endfor %}}{{{{ ns.s }}}}"
    )
}

/// A template with two texts, `a` and `b`, of this many bytes, followed by `then`.
fn with_text(bytes: usize, then: &str) -> String {
    format!("{{% set a = 'x' * {bytes} %}}{{% set b = 'x' * {bytes} %}}{then}")
}

/// A template that repeats the body a hundred thousand times.
fn looped(body: &str) -> String {
    format!("{{% for i in range(100000) %}}{body}{{% endfor %}}")
}

/// Templates that grow or search without an end. Their first texts have this many bytes.
fn endless(bytes: usize) -> Vec<String> {
    let mut sources = vec![
        looped(&looped("")),
        looped(&looped(&"x".repeat(60))),
        looped(&format!("{{% set s %}}{}{{% endset %}}", looped("x"))),
        format!("{{% set s %}}{}{{% endset %}}", looped(&looped("0123456789"))),
        format!("{{% macro m() %}}{}{{% endmacro %}}{{{{ m() }}}}", looped(&looped(&"x".repeat(60)))),
    ];
    sources.extend(under("what grows, and what it becomes 64 times").map(|line| {
        let (begin, then) = line.split_once(" => ").expect(line);
        repeated(begin, then)
    }));
    sources.extend(under("what reads all of two long texts").map(|then| with_text(bytes, &looped(then))));
    sources.extend(under("what makes too much of two long texts").map(|then| with_text(bytes, then)));
    let times = bytes * 10;
    sources.extend([
        format!("{{{{ 'x' * {times}0000 }}}}"),
        "{{ 'x' * 10 ** 18 }}".to_owned(),
        "{{ [1] * 99999999 }}".to_owned(),
        "{{ ([[1] * 99999999] * 99999999) ~ '' }}".to_owned(),
        with_text(bytes, &format!("{{{{ '{}'.format(a) * 999 }}}}", "{0}".repeat(9999))),
        with_text(bytes, &format!("{{{{ '{}' % {{'a': a}} * 999 }}}}", "%(a)s".repeat(9999))),
    ]);
    sources
}

#[test]
fn endless_growth_and_endless_searches_stop_at_a_limit() {
    for source in endless(20_000) {
        stopped(&source, small());
    }
}

#[test]
fn the_default_limits_stop_endless_templates() {
    // Each of them takes a third of a second, so only every ninth is run.
    for source in endless(2_000_000).iter().step_by(9) {
        stopped(source, Limits::default());
    }
}

#[test]
fn the_result_of_a_filter_is_counted_item_by_item() {
    for filter in ["'batch', 9000, 1", "'format', 1", "'indent', 9000, true", "'slice', 9000"] {
        let source = format!("{{% set l = ['%9000d'] * 2000 %}}{{% set made = l | map({filter}) | list %}}");
        let limit = stopped(&source, small());
        assert!(matches!(limit, Limit::Steps(_)), "{filter}: {limit}");
    }
}

#[test]
fn the_nesting_of_values_is_limited_everywhere() {
    for then in under("what holds itself, one value within another") {
        let source = format!(
            "{{% set ns = namespace(s=['x']) %}}{{% for i in range(1000) %}}{{% set ns.s = {then} %}}{{% endfor %}}"
        );
        let limit = stopped(&source, Limits::default());
        assert!(matches!(limit, Limit::Nesting(_)), "{then}: {limit}");
    }
}

#[test]
fn a_namespace_refuses_values_that_could_contain_themselves() {
    for value in ["ns", "[ns]", "{'a': ns}", "m", "[m]", "cycler(1)", "namespace()", "range"] {
        let source = format!(
            "{{% macro m() %}}{{% endmacro %}}{{% set ns = namespace() %}}{{% for i in [1] %}}{{% set ns.x = {value} %}}{{% endfor %}}"
        );
        let error = run(&source, small()).unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{value}: {error}");
        assert!(error.to_string().contains("can contain data only"), "{error}");
    }
}

#[test]
fn a_loop_cannot_be_stored_in_itself() {
    for use_of_it in under("uses of a loop as a value") {
        let source = format!("{{% for i in [1] %}}\n{use_of_it}{{% endfor %}}");
        let error = run(&source, small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 2, .. }), "{use_of_it}: {error}");
    }
}

/// The deepest values that are allowed, in every use that is recursive.
#[test]
fn the_deepest_values_fit_the_stack() {
    let lazy = "[0:]".repeat(110);
    for deeper in ["[x]", "(x,)", "{'a': x}", "[{'a': x, 'b': 1}] | groupby('b') | list"] {
        // This is the maximum number of levels. With one more there is an error.
        let levels = if deeper.contains("groupby") { 48 } else { 197 };
        for use_of_it in under("uses of the deepest values") {
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
    for source in under("numbers and names that would hide what follows them") {
        let error = run(source, small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 1, .. }), "{source}: {error}");
    }
}

#[test]
fn the_nesting_of_calls_is_limited() {
    for source in under("calls within calls") {
        let limit = stopped(source, small());
        assert!(matches!(limit, Limit::Calls(_)), "{source}: {limit}");
    }
}

#[test]
fn a_source_nests_as_deep_as_fits_the_stack_and_no_deeper() {
    for line in under("how often a source may open, and close again, what is between « and »") {
        let (deepest, shape) = line.split_once(' ').expect(line);
        let parts: Vec<&str> = shape.split(['«', '»']).collect();
        // Every second part of the shape is repeated.
        let source = |times: usize| {
            let repeated = parts.iter().enumerate().map(|(at, part)| part.repeat(if at % 2 == 1 { times } else { 1 }));
            repeated.collect::<String>()
        };
        // If the text is not a valid template, the parser returns an error.
        match run(&source(deepest.parse().unwrap()), small()) {
            Ok(_) | Err(Error::Failed { .. }) => {}
            Err(Error::Syntax { reason, .. }) if reason.contains("recursion") => {}
            Err(error) => panic!("{line}: {error}"),
        }
        let error = run(&source(20_000), small()).unwrap_err();
        assert!(matches!(error, Error::Syntax { .. }), "{line}: {error}");
    }
    let long = "x".repeat((1 << 20) + 1);
    assert!(matches!(stopped(&long, small()), Limit::SourceBytes(_)));
}

#[test]
fn widths_and_counts_cannot_inflate_the_output() {
    for source in under("widths and counts") {
        let error = run(source, small()).unwrap_err();
        let is_stopped = matches!(error, Error::Failed { .. } | Error::Limit { .. });
        assert!(is_stopped, "{source}: {error}");
    }
}

#[test]
fn a_template_reaches_nothing_but_the_conversation() {
    for source in under("what reaches beyond the conversation") {
        let error = run(source, small()).unwrap_err();
        let is_refused = matches!(error, Error::Failed { .. } | Error::Syntax { .. });
        assert!(is_refused, "{source}: {error}");
    }
}
