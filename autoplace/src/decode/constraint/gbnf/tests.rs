use llama_sys::{Candidate, Candidates, Model, ModelParams, Sampler};

use crate::decode::constraint::tests::{allows, vocab, vocabulary};
use crate::decode::constraint::{Constraint, Matcher};

/// Grammars as they are in llama.cpp's folder `grammars`, and as people write them. Each has texts that it allows, and
/// texts that it does not.
const GRAMMARS: &[(&str, &[&str], &[&str])] = &[
    (
        r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (
  value ("," ws value)* # values
)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#,
        &["{\"a\": [1, -2.5e3, {\"b\":null}],\n\t \"\\u00e9\\\"\": \"x\"}", "{}"],
        &["[]", "{\"a\":01}", "{ \"a\"  :1}", "{\"a\":1,}", "{'a':1}", "{\"a\":1"],
    ),
    (
        r#"
root ::= (sum "=" blank part "\n")+
sum ::= part ([-+*/] part)*
part ::= name | number | "(" blank sum ")" blank
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t\n]*
"#,
        &["a=1\n", "a +(b_2*3) = c\n", "a\n\n-1=2\n\n\nx=y\n"],
        &["a=1", "a+=1\n", "(a=1\n", "1a=2\n", "A=1\n"],
    ),
    (
        r#"
root ::= function*
function ::= type name "(" (type name)? ")" "{" statement* "}"
type ::= "int" blank | "float" blank
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= type name blank "=" blank sum ";" | name blank "=" blank sum ";" | "return" blank sum ";" | remark |
  "while" "(" sum ("<" | "<=") sum ")" "{" statement* "}"
sum ::= part (("+" | "-") part)*
part ::= name | [0-9]+ | "-" part | name "(" (sum ("," blank sum)*)? ")" | "(" blank sum blank ")"
remark ::= "/*" ([^*] | "*" [^/])* "*/"
blank ::= [ \t\n]+
"#,
        &[
            "int f(float x){integer = 1;return  x+-( f(2, y) );/* a*b */while(x<=10){returned = x;}}",
            "",
            "int f(){return = 2;return 2;}",
        ],
        &["int f(){int 2;}", "int f(){return2;}", "intf(){}", "int f(){/* }", "int f(){return 2}"],
    ),
    (
        r#"root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?"#,
        &["1. e4 e5\n", "1. e4 Nbxd7+\n12. O-O-O exd8=Q#\n"],
        &["1. e4\n", "1. e9 e5\n", "2. e4 e5\n", "1. O-O-O-O e5\n"],
    ),
    ("root ::= (\"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\")+", &["- a\n- b c\n"], &["- a", "-a\n", "- \n"]),
    ("root ::= [ぁ-ゟァ-ヿ一-鿿、-〾]+ ([ \\t\\n] [ぁ-ゟ一-鿿]+)*", &["日本、ー 語"], &["日本 a", " 日本"]),
    // A rule that names itself at its end is regular, whether or not the name is in a group.
    ("root ::= \"<\" chars \">\"\nchars ::= ([^<>] chars)?", &["<>", "<a b>"], &["<a", "<a>b>"]),
    ("root ::= item rest\nrest ::= | \", \" item rest\nitem ::= [a-z]+", &["a", "a, bc, d"], &["a, ", "a,b"]),
    // A part may begin with a character with which the part before it could also continue.
    ("root ::= word root2\nword ::= [a-z]+\nroot2 ::= \"b\" root2 \"c\" | \"\"", &["abab", "abbcc", "b"], &["", "aB"]),
    (
        "root ::= (\"ab\" | \"a\" inner | \"abcd\")+ \"d\"\ninner ::= \"bc\" | \"(\" inner \")\"",
        &["abcdd", "abcd", "a(bc)d"],
        &["ab", "a(bcd"],
    ),
    // Arbitrary nesting, with optional blanks on both sides.
    (
        "root ::= b e b\ne ::= \"x\" | \"(\" b e b \")\" | e2\ne2 ::= \"[\" b e b \"]\"\nb ::= [ ]*",
        &[" ( [ x ]) ", "x"],
        &["(x", "( ]"],
    ),
    ("root ::= [^a-z\\x80-\\U0010FFFF]{2} \"\\u65E5\" . .", &["A!日\n語"], &["a!日\n語", "A!日\n"]),
    ("root ::= a* \"ab\"\na ::= [ab]", &["aababab", "ab"], &["aaba"]),
    ("root ::= \"a\"{0} [] (\"(\" | \"\\U0010FFFF\" [^]) # all", &["("], &["a("]),
    ("root ::= (\"a\"? \"b\"{2}){1,2} [^\\U0000D800-\\U0000DFFF] .", &["abbbb/\n"], &["abb"]),
    (
        "root ::= [0-9]{2,} \".\" [0-9]{1,3} x\nx ::= \"(\" x \")\" | [0-9]?",
        &["10.123(4)", "1234.1"],
        &["1.2", "10.1234(5)"],
    ),
    ("# empty lines come first\n\nroot ::= (\"x\" |\n \"y\")\n", &["x", "y"], &["", "xy"]),
];

#[test]
fn a_grammar_allows_its_texts_and_no_others() {
    for (grammar, texts, others) in GRAMMARS {
        let constraint = Constraint::gbnf(*grammar);
        for text in *texts {
            assert!(allows(&constraint, text), "{grammar}: {text:?}");
        }
        for text in *others {
            assert!(!allows(&constraint, text), "{grammar}: {text:?}");
        }
    }
}

/// Compares the allowed tokens with the tokens that llama.cpp's sampler allows, along random texts.
fn agrees_with_llama_cpp(grammar: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
    let model = Model::load(path, ModelParams::default()).unwrap();
    let (vocab, vocabulary) = (model.vocab(), vocabulary());
    // Control tokens are never allowed here. Tokens that contain only a part of a character are left out.
    let piece = |token: i32| {
        let mut text = Vec::new();
        vocab.append_piece(token, false, &mut text).unwrap();
        text
    };
    let is_compared = |token: i32| {
        let text = piece(token);
        vocab.is_eog(token) || !vocab.is_control(token) && !text.is_empty() && std::str::from_utf8(&text).is_ok()
    };
    let compared: Vec<i32> = (0..vocab.n_tokens() as i32).filter(|token| is_compared(*token)).collect();
    let begun = Matcher::new(&Constraint::gbnf(grammar), &vocabulary).unwrap();
    for seed in 1..=5_u32 {
        let mut matcher = begun.clone();
        let mut theirs = Sampler::chain(&model).unwrap().grammar(grammar, "root").unwrap().greedy().unwrap();
        let (mut dice, mut text) = (seed.wrapping_mul(747_796_405), Vec::new());
        for _ in 0..40 {
            let mask = matcher.mask().unwrap();
            let is_ours = |token: &&i32| mask[**token as usize / 32] >> (**token % 32) & 1 == 1;
            let ours: Vec<i32> = compared.iter().filter(is_ours).copied().collect();
            let mut candidates = Candidates::default();
            candidates.set(&vec![0.0; vocab.n_tokens() as usize], None);
            theirs.apply(&mut candidates).unwrap();
            let mut allowed: Vec<i32> = candidates
                .iter()
                .filter(|candidate| candidate.logit() > f32::NEG_INFINITY)
                .map(Candidate::token)
                .collect();
            allowed.sort_unstable();
            allowed.retain(|token| compared.contains(token));
            let shown = String::from_utf8_lossy(&text).into_owned();
            let differ = |one: &[i32], other: &[i32]| -> Vec<String> {
                let missing = one.iter().filter(|token| !other.contains(token));
                missing.map(|token| String::from_utf8_lossy(&piece(*token)).into_owned()).take(20).collect()
            };
            let (only_ours, only_theirs) = (differ(&ours, &allowed), differ(&allowed, &ours));
            assert_eq!((only_ours, only_theirs), (vec![], vec![]), "{grammar}: after {shown:?}");
            let going_on: Vec<i32> = ours.into_iter().filter(|token| !vocab.is_eog(*token)).collect();
            if going_on.is_empty() {
                break;
            }
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            let token = going_on[dice as usize % going_on.len()];
            vocab.append_piece(token, false, &mut text).unwrap();
            matcher.accept(token).unwrap();
            theirs.accept(token).unwrap();
        }
    }
}

#[test]
fn the_tokens_that_are_allowed_are_those_that_llama_cpp_allows() {
    for (grammar, _, _) in GRAMMARS {
        agrees_with_llama_cpp(grammar);
    }
}

/// Run by hand: `AUTOPLACE_GRAMMARS=llama.cpp/grammars cargo test -p autoplace --lib published_grammars -- --ignored`.
#[test]
#[ignore = "reads llama.cpp's folder of grammars, which its package lacks"]
fn llama_cpps_published_grammars_allow_what_llama_cpp_allows() {
    let folder = std::env::var("AUTOPLACE_GRAMMARS").expect("AUTOPLACE_GRAMMARS is llama.cpp's folder of grammars");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "gbnf") {
            println!("{}", path.display());
            agrees_with_llama_cpp(&std::fs::read_to_string(&path).unwrap());
            read += 1;
        }
    }
    assert!(read >= 8, "{read} grammars were found");
}

#[test]
fn an_error_names_the_line_and_the_column_and_what_was_expected() {
    for (grammar, expected) in [
        ("root ::= \"a\"\nb = c", "line 2, column 3: `::=` expected, not \"= c\""),
        ("root ::= (\"a\"", "line 1, column 14: `)` expected, not the end of the grammar"),
        ("root ::= a\na ::= é \"é\"", "line 2, column 7: the end of the rule expected, not \"é \\\"é\\\"\""),
        ("root ::= a\na ::= \"é\" b", "line 2, column 11: the rule `b` is not defined"),
        ("a ::= \"a\"", "it has no rule `root`"),
        ("root ::= \"\\q\"", "line 1, column 11: one of the escapes"),
        ("root ::= \"\\u12g4\"", "line 1, column 13: 4 hexadecimal digits expected, not \"12g4\\\"\""),
        ("root ::= \"a\"{3000}", "line 1, column 13: 3000 repetitions are more than 2000"),
        ("root ::= \"a\"{3,1}", "line 1, column 13: the maximum of 1 repetitions is below the minimum of 3"),
        ("root ::= a_b", "line 1, column 11: the end of the rule expected, not \"_b\""),
        ("root ::= * \"a\"", "line 1, column 10: something to repeat expected"),
        ("root ::= \"a\n", "line 2, column 1: a character expected, not the end of the grammar"),
        ("root ::= [a", "line 1, column 12: a character expected"),
        ("root ::= a\na ::= b? a \"x\"\nb ::= \"y\"", "line 2, column 1: the rule `a` can begin with itself"),
        ("root ::= \"x\" root", "line 1, column 1: no text of the rule `root` ever ends"),
        ("root ::= <[99", "line 1, column 14: `]>` expected"),
        ("root ::= <think", "line 1, column 11: `>` expected"),
        ("", "it has no rule `root`"),
    ] {
        let said = Constraint::gbnf(grammar).check().unwrap_err().to_string();
        assert!(said.contains(expected), "{grammar}: {said}");
    }
}

#[test]
fn a_token_is_named_by_its_number_or_its_text() {
    let (vocab, vocabulary) = (vocab(), vocabulary());
    let env = vocabulary.factory.tok_env().clone();
    let is_word = |token: &i32| {
        let mut text = Vec::new();
        vocab.append_piece(*token, false, &mut text).unwrap();
        !vocab.is_control(*token) && text.len() > 2 && text.is_ascii()
    };
    let token = (0..vocab.n_tokens() as i32).find(is_word).unwrap();
    let allowed = |grammar: &str, given: &[i32]| {
        let mut matcher = Matcher::new(&Constraint::gbnf(grammar), &vocabulary).unwrap();
        given.iter().for_each(|token| matcher.accept(*token).unwrap());
        let mask = matcher.mask().unwrap().to_vec();
        move |token: i32| mask[token as usize / 32] >> (token % 32) & 1 == 1
    };
    let x = env.tokenize_bytes(b"x")[0] as i32;
    let begins = allowed(&format!("root ::= <[{token}]> \"x\""), &[]);
    assert!(begins(token) && !begins(x));
    let then = allowed(&format!("root ::= <[{token}]> \"x\""), &[token]);
    assert!(then(x) && !then(token));
    let other = allowed(&format!("root ::= !<[{token}]>+ <[{token}]>"), &[x]);
    assert!(other(token) && other(x));
    let not_yet = allowed(&format!("root ::= !<[{token}]>+ \"x\""), &[]);
    assert!(!not_yet(token) && not_yet(x));

    let said = |grammar: &str| Matcher::new(&Constraint::gbnf(grammar), &vocabulary).unwrap_err().to_string();
    let unknown = said("root ::= <no such token>");
    assert!(
        unknown.contains("line 1, column 10: `<no such token>` is not a token of the model's vocabulary"),
        "{unknown}"
    );
    let name = |token: i32| {
        let mut text = Vec::new();
        vocab.append_piece(token, true, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let mut control = (0..vocab.n_tokens() as i32).filter(|token| vocab.is_control(*token)).map(name);
    let control = control.find(|name| name.starts_with('<') && name.ends_with('>')).unwrap();
    let refused = said(&format!("root ::= \"a\" {control}"));
    let expected = format!("column 14: `{control}` is a control token, which no constraint allows");
    assert!(refused.contains(&expected), "{refused}");
}

#[test]
fn gbnf_is_told_from_lark_by_its_first_definition() {
    for (grammar, is_gbnf) in [
        ("root ::= \"a\"", true),
        ("# start: no\n\n  root-1::=\n \"a\"", true),
        ("\u{feff}root ::= \"a\"", true),
        ("start: \"::=\"", false),
        ("%llguidance {}\nstart: \"a ::= b\"", false),
        ("?start: A\nA: /x ::= y/", false),
        ("", false),
    ] {
        let read = Constraint::grammar(grammar);
        let expected = if is_gbnf { Constraint::gbnf(grammar) } else { Constraint::lark(grammar) };
        assert_eq!(read, expected, "{grammar:?}");
    }
}
