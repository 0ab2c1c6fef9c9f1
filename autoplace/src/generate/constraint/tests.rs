use llama_sys::{Model, ModelParams, Vocab};

use super::{Constraint, Matcher, Vocabulary};

fn vocab() -> Vocab {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
    Model::load(path, ModelParams::default()).unwrap().vocab()
}

fn matcher(constraint: &Constraint, vocab: &Vocab) -> Matcher {
    let vocabulary = Vocabulary::new(vocab).unwrap();
    Matcher::new(constraint, &vocabulary, vocab).unwrap()
}

/// The vocabulary puts a space before every text.
fn kinds() -> [Constraint; 2] {
    [Constraint::regex(" the king( said)*"), Constraint::gbnf("root ::= \" the king\" (\" said\")*")]
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let vocab = vocab();
    let wrong = vocab.tokenize("zebra", false, false).unwrap();
    for constraint in kinds() {
        let last = *wrong.last().unwrap();
        assert!(matcher(&constraint, &vocab).accept(last).is_err());
    }
}

/// Whether a whole text is one that the constraint allows.
fn allows(constraint: &Constraint, text: &str) -> bool {
    let vocab = vocab();
    let vocabulary = Vocabulary::new(&vocab).unwrap();
    let mut matcher = Matcher::new(constraint, &vocabulary, &vocab).unwrap();
    let env = vocabulary.factory().tok_env().clone();
    for token in env.tokenize_bytes(text.as_bytes()) {
        let Ok(mask) = matcher.mask() else {
            return false;
        };
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return false;
        }
        matcher.accept(token as i32).unwrap();
    }
    matcher.may_end()
}

/// Grammars of the kinds that llama.cpp's `grammars/` has: each with texts that are sentences of it, and
/// texts that are none.
#[test]
fn grammars_in_gbnf_allow_their_sentences_and_no_others() {
    let json = r#"
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let arithmetic = r#"
root ::= (sum "=" blank part "\n")+
sum ::= part ([-+*/] part)*
part ::= name | number | "(" blank sum ")" blank
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t\n]*
"#;
    let statements = r#"
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
"#;
    let moves = r#"root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= ([NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8] | ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])? | "O-O" "-O"?) [+#]?"#;
    let list = r#"root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n""#;
    let japanese = r#"root ::= letter+ ([ \t\n] letter+)*
letter ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾] | [一-鿿]"#;
    let left = "root ::= root \"+\" [0-9] | [0-9]";
    for (grammar, sentences, others) in [
        (
            json,
            vec!["{}", "{\"a\": [1, -2.5e+3, {\"b\":null}],\n\t\"c\":\"\\u00e9\\n / é\"}"],
            vec!["{\"a\":}", "[1]", "{\"a\": 01}", "{\"a\":\"b\""],
        ),
        (arithmetic, vec!["1+2=3\n", "(a1 *2) -x=\n y \n\n7=7\n"], vec!["1+2=3", "1+=3\n", "(1=1\n"]),
        (
            statements,
            vec!["", "int main(){whale = 1;while(i<=f(1, -i)){/* a * b */i = ( 2 )+3;}return i;}"],
            vec!["int main(){x=1;}", "int main(){return 1;"],
        ),
        (moves, vec!["1. e4 e5\n", "1. e4 Nf6\n2. exd5+ O-O-O\n"], vec!["1. e9 e5\n", "1. e4\n"]),
        (list, vec!["- one\n- zwölf\n"], vec!["- one", "-one\n", "- a\u{2028}\n"]),
        (japanese, vec!["日本語 テスト、です。"], vec!["日本語 test", " 日本"]),
        (left, vec!["1", "1+2+3"], vec!["1+", "+1"]),
    ] {
        let constraint = Constraint::gbnf(grammar);
        for sentence in sentences {
            assert!(allows(&constraint, sentence), "{grammar}: {sentence:?}");
        }
        for other in others {
            assert!(!allows(&constraint, other), "{grammar}: {other:?}");
        }
    }
}

#[test]
fn a_regular_grammar_in_gbnf_is_followed_in_every_reading() {
    for (grammar, sentence, other) in [
        ("root ::= a* \"ab\"\na ::= [ab]", "aababab", "aaba"),
        ("root ::= [ \\n]* \"\\n\" x\nx ::= \"x\"? | \"-/\"", " \n\n-/", " x"),
        ("root ::= (\"a\"? \"b\"{2}){1,2} [^\\U0000D800-\\U0000DFFF] .", "abbbb/\n", "abb"),
        ("root ::= \"a\"{0} \"\"* [] (\"(\" | \"\\U0010FFFF\" [^]) # all", "(", "a("),
    ] {
        assert!(allows(&Constraint::gbnf(grammar), sentence), "{grammar}");
        assert!(!allows(&Constraint::gbnf(grammar), other), "{grammar}");
    }
}

#[test]
fn an_error_of_a_gbnf_grammar_names_the_line_and_what_was_expected() {
    for (grammar, expected) in [
        ("root ::= \"a\"\nb = c", "line 2: `::=` expected, not \"= c\""),
        ("root ::= (\"a\"", "line 1: `)` expected, not the end of the line"),
        ("root ::= a\na ::= b", "line 2: the rule `b` is not defined"),
        ("a ::= \"a\"", "it has no rule `root`"),
        ("root ::= \"\\q\"", "line 1: an escape that GBNF has expected, not \"\\\\q\\\"\""),
        ("root ::= \"a\"{3000}", "line 1: more than 2000 repetitions"),
        ("root ::= \"a\"{3,1}", "line 1: a repetition whose most is below its least"),
        ("root ::= <think>", "line 1: tokens of the vocabulary are not supported"),
        ("root ::= a_b", "line 1: the end of the rule expected, not \"_b\""),
    ] {
        let error = super::gbnf::lark(grammar).unwrap_err();
        assert_eq!(error, expected, "{grammar}");
    }
}

#[test]
fn a_schema_within_a_lark_grammar_is_held_to_what_one_alone_is() {
    let grammar = |schema: &str| Constraint::lark(format!("start: \"<\" %json {schema} \">\""));
    let number = grammar(r#"{"type": "integer", "exclusiveMinimum": 1, "maximum": 3}"#);
    assert!(allows(&number, "<2>") && !allows(&number, "<1>") && !allows(&number, "<4>"));
    assert!(!allows(&grammar(r#"{"const": "a", "x-guidance": {"whitespace_pattern": "x"}}"#), "<x\"a\">"));
}

#[test]
fn a_text_whose_parser_would_keep_too_much_ends() {
    let vocab = vocab();
    let regex = format!("[ab]*a{}", "[ab]".repeat(60_000));
    let vocabulary = Vocabulary::new(&vocab).unwrap();
    let mut matcher = Matcher::new(&Constraint::regex(regex), &vocabulary, &vocab).unwrap();
    let env = vocabulary.factory().tok_env().clone();
    let letters = ["a", "b"].map(|it| env.tokenize_bytes(it.as_bytes())[0] as i32);
    let mut dice = 1_u32;
    let refused = (0..20_000).find_map(|_| {
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        matcher.accept(letters[dice as usize % 2]).and_then(|()| matcher.mask().map(drop)).err()
    });
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("would keep more than 256 MiB"), "{refused}");
}

#[test]
fn what_weighs_too_much_is_refused_before_it_is_compiled() {
    let double = |first: &str| -> String {
        let rules = (1..40).map(|i| format!("r{i} ::= r{} r{}\n", i - 1, i - 1));
        format!("root ::= r39\nr0 ::= {first}\n{}", rules.collect::<String>())
    };
    let vocab = vocab();
    let vocabulary = Vocabulary::new(&vocab).unwrap();
    for constraint in [
        Constraint::regex("a?".repeat(8_000)),
        Constraint::regex("\\pL".repeat(8_000)),
        Constraint::gbnf(double("\"x\"?")),
        Constraint::gbnf(format!("root ::= {}", "\"a\"?".repeat(8_000))),
        Constraint::gbnf(format!("root ::= {} \"b\"", "root \"a\" | ".repeat(3_000))),
        Constraint::lark(format!(
            "start: A14\nA0: /a?/\n{}",
            (1..15).map(|i| format!("A{i}: A{} A{}\n", i - 1, i - 1)).collect::<String>()
        )),
        Constraint::lark(format!("start: A\nA: {}/b/", "~/.*a.*/ & ".repeat(8_000))),
        Constraint::json_schema(serde_json::json!({"pattern": format!("^{}$", "a?".repeat(8_000))})),
    ] {
        let refused = Matcher::new(&constraint, &vocabulary, &vocab).unwrap_err().to_string();
        assert!(refused.contains("larger than 256 KiB") || refused.contains("too large together"), "{refused}");
    }
}
