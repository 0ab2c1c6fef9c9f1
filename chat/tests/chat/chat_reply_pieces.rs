//! What an answer means does not depend on how its text is divided into pieces, and no text is lost.

use autoplace_chat::{ReasoningMarks, Reply, ReplyFormat, ReplyParser, ReplyPart, Tool, ToolCallFormat};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use test_support::replies::{SAMPLES, tools};

fn formats() -> Vec<ReplyFormat> {
    let thinking = ReplyFormat::plain().with_reasoning(ReasoningMarks::THINK);
    let of_samples = SAMPLES.iter().map(|sample| ReplyFormat::of_template(&sample.template));
    let of_names = ToolCallFormat::all().map(|format| thinking.clone().with_tool_calls(format));
    [ReplyFormat::plain(), thinking.clone()].into_iter().chain(of_samples).chain(of_names).collect()
}

/// The parts, in which texts of the same kind that follow each other are joined, and the whole reply.
fn read(format: &ReplyFormat, prompt: &str, pieces: &[&str]) -> (Vec<ReplyPart>, Reply) {
    let mut parser = ReplyParser::new(format).after_prompt(prompt).with_tools(&tools(Tool::new));
    let mut parts = Vec::new();
    for piece in pieces {
        parser.push(piece).for_each(|part| join(&mut parts, part));
    }
    parser.end().for_each(|part| join(&mut parts, part));
    (parts, parser.finish())
}

fn join(parts: &mut Vec<ReplyPart>, part: ReplyPart) {
    match (parts.last_mut(), part) {
        (Some(ReplyPart::Content(before)), ReplyPart::Content(text))
        | (Some(ReplyPart::Reasoning(before)), ReplyPart::Reasoning(text)) => {
            before.push_str(&text);
        }
        (_, part) => parts.push(part),
    }
}

/// Divides the text into pieces. Their lengths are these numbers of characters, again and again.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut sizes = sizes.iter().cycle();
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let size = *sizes.next().unwrap_or(&1);
        let end = rest.char_indices().nth(size.max(1)).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Pieces of marks, and texts that may stand between marks.
fn fragments() -> Vec<String> {
    let short = [
        " ", "\n", "\n\n", "a", "é", "word ", "<", ">", "[", "]", "{", "}", "\"", "\\", "'", ":", ",", "(", ")", "=",
        "{}", "note", "all\n", ">>>", "```", "<think>", "</think>",
    ];
    let long = [
        "{\"name\": \"note\", \"arguments\": {\"text\": \"x\"}}",
        "{\"name\": \"get_weather\", \"parameters\": {}}",
        "function<｜tool▁sep｜>note",
        "functions.note:0",
        "```json\n",
        "call:note{text:<|\"|>x<|\"|>}",
        "[note(text='x')]",
        "<|start|>assistant",
        "<|channel|>analysis",
        "<|message|>",
        "to=functions.note",
    ];
    let mut fragments: Vec<String> = short.into_iter().chain(long).map(str::to_owned).collect();
    for sample in SAMPLES.iter() {
        // A piece of a mark is any text in brackets that is as short as a mark.
        for (at, open) in sample.text.match_indices(['<', '[']) {
            let close = if open == "<" { '>' } else { ']' };
            let text = &sample.text[at..];
            if let Some(end) = text.find(close).filter(|end| *end < 40) {
                fragments.push(text[..=end].to_owned());
            }
        }
    }
    fragments.sort();
    fragments.dedup();
    fragments
}

fn answer() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => prop::sample::select(fragments()),
        1 => any::<char>().prop_map(String::from),
        1 => prop::sample::select(SAMPLES.as_slice()).prop_map(|sample| sample.text.to_owned()),
        1 => Just(" ".repeat(300)),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_result_does_not_depend_on_how_a_text_is_cut(
        format in prop::sample::select(formats()),
        prompt in prop::sample::select(&["", "<think>\n", "</think>", "<|start|>assistant", ">>>"]),
        text in answer(),
        sizes in prop::collection::vec(1_usize..12, 1..6),
    ) {
        let (whole, reply) = read(&format, prompt, &[&text]);
        let (pieces, cut_reply) = read(&format, prompt, &cut(&text, &sizes));
        prop_assert_eq!(&whole, &pieces);
        prop_assert_eq!(&reply, &cut_reply);

        prop_assert_eq!(&reply.raw, &text);
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in whole {
            match part {
                ReplyPart::Content(text) => content += &text,
                ReplyPart::Reasoning(text) => reasoning += &text,
                ReplyPart::ToolCall(call) => calls.push(call),
            }
        }
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        prop_assert_eq!((&content, &reasoning, &calls), (&reply.content, &reply.reasoning, &reply.tool_calls));
        for call in &reply.malformed {
            prop_assert!(text.contains(&call.text));
            prop_assert!(reply.content.contains(call.text.trim()));
        }
    }
}

#[test]
fn every_sample_means_the_same_in_single_characters() {
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        let whole = read(&format, &sample.prompt, &[sample.text]);
        assert_eq!(read(&format, &sample.prompt, &cut(sample.text, &[1])), whole, "{}", sample.name);
    }
}

/// Maximum number of bytes that the parser keeps back: a text that may be a header, and white space.
const MAX_HELD_BACK: usize = 300;

#[test]
fn text_that_cannot_be_a_call_is_returned_at_once() {
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        for unit in ["word ", "é", "<", "<b>", "[", ">>> x\n", "\"{", "a</think>", "] ", "<tool_call> "] {
            let mut parser = ReplyParser::new(&format);
            let mut pushed = 0;
            let mut given = 0;
            for _ in 0..300 {
                pushed += unit.len();
                for part in parser.push(unit) {
                    given += match part {
                        ReplyPart::Content(text) | ReplyPart::Reasoning(text) => text.len(),
                        other => panic!("{}: {other:?} from {unit}", sample.name),
                    };
                }
                assert!(pushed <= given + MAX_HELD_BACK, "{}: {unit}", sample.name);
            }
        }
    }
}

/// A parser that is not careful would search these texts again with every piece.
#[test]
fn long_answers_in_small_pieces_are_read_to_their_end() {
    let length = 1 << 14;
    let units = [" ", "<think>", "{\"name\":", ">>>", "<|start|>"];
    let calls = ["<tool_call>{\"", "[TOOL_CALLS]a", "<|tool_call_begin|>a{"];
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        for unit in units.into_iter().chain(calls) {
            let text = unit.repeat(length / unit.len());
            let (_, reply) = read(&format, "", &cut(&text, &[4]));
            assert_eq!(reply.raw.len(), text.len(), "{}: {unit}", sample.name);
        }
    }
}
