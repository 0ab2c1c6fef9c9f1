use super::parse::{Chars, Element, rules};
use super::{FUEL, MAX_KEPT, Text};

fn c(c: char) -> Element {
    Element::Chars(Chars {
        is_negated: false,
        ranges: vec![(c.into(), c.into())],
    })
}

#[test]
fn repetitions_become_rules_as_in_llama_cpp() {
    let parsed = rules("root ::= \"a\"{1,3} \"b\"*", "root").unwrap();
    let expected = [
        vec![vec![c('a'), Element::Rule(2), Element::Rule(3)]],
        vec![vec![c('a')], vec![]],
        vec![vec![c('a'), Element::Rule(1)], vec![]],
        vec![vec![c('b'), Element::Rule(3)], vec![]],
    ];
    assert_eq!(parsed.rules, expected);
    assert_eq!(parsed.root, 0);
}

#[test]
fn classes_have_ranges_escapes_and_complements() {
    let parsed = rules("root ::= [^a-c\\]\\x41\\u00e9-] [-x] .", "root").unwrap();
    let one = |c: char| (u32::from(c), u32::from(c));
    let chars = |is_negated, ranges| Element::Chars(Chars { is_negated, ranges });
    let expected = vec![
        chars(
            true,
            vec![
                ('a'.into(), 'c'.into()),
                one(']'),
                one('A'),
                one('é'),
                one('-'),
            ],
        ),
        chars(false, vec![one('-'), one('x')]),
        chars(true, vec![]),
    ];
    assert_eq!(parsed.rules, [[expected]]);
}

#[test]
fn an_error_names_the_line_and_what_was_expected() {
    let said = |text| rules(text, "root").unwrap_err();
    assert_eq!(
        said("root ::= \"a\"\nb = c"),
        "line 2: `::=` expected, not \"= c\""
    );
    assert_eq!(
        said("root ::= (\"a\""),
        "line 1: `)` expected, not the end of the line"
    );
    assert_eq!(said("root ::= other"), "the rule `other` is not defined");
}

#[test]
fn what_is_kept_of_a_text_does_not_grow_with_it() {
    // Where a letter was an `x` is known for hundreds of them.
    let mut text = Text::new("root ::= [xy]* \"x\" [xy]{400}", "root").unwrap();
    let mut bits = 1_u64;
    for _ in 0..24_000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let letter = if bits >> 63 == 0 { b"x" } else { b"y" };
        assert!(text.accept(letter));
    }
    let kept: usize = text.states.iter().map(|state| state.len()).sum();
    assert!(kept <= MAX_KEPT + FUEL, "{kept}");
}
