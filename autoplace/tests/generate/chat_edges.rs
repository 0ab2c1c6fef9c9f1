//! Edge cases of conversations: empty messages, roles that a template does not know, edits in the middle of a history,
//! and answers in every format of tool calls. On the demo model.

use crate::text_support::{self, chat, demo};
use autoplace::Model;
use autoplace::chat::{self, ChatTemplate, Message, ReplyFormat, ReplyParser, ReplyPart, Role, Tool};
use autoplace::generate::{Chat, Error};
use test_support::replies::tools;

fn load() -> Model {
    demo(2048, 1, false)
}

/// The answer to a history. The model is loaded again for it.
fn fresh(family: &str, history: &[Message]) -> String {
    let model = load();
    let mut chat = chat(&model, family);
    *chat.messages_mut() = history.to_vec();
    chat.answer().unwrap().finish().unwrap().0.raw
}

#[test]
fn empty_messages_are_messages() {
    let model = load();
    for family in chat::FAMILIES {
        let mut chat = chat(&model, family);
        for said in ["", " ", "\n\n"] {
            // The first message of a conversation gets the same answer as with a model that was just loaded.
            let (reply, statistics) = text_support::chat(&model, family).say(said).unwrap().finish().unwrap();
            assert!(statistics.prompt_tokens > 0, "{family}");
            assert_eq!(reply.raw, fresh(family, &[Message::user(said)]), "{family}");
            // The other chat gets several such messages in succession.
            chat.say(said).unwrap().finish().unwrap();
        }
        assert_eq!(chat.messages().iter().filter(|message| message.role == Role::USER).count(), 3);
        // The history consists only of empty messages.
        *chat.messages_mut() = vec![Message::user(""), Message::assistant(""), Message::user("")];
        chat.answer().unwrap().finish().unwrap();
    }
    // A system message counts as a message even if it is empty. If the history is empty, the template decides what
    // happens.
    let mut chat = chat(&model, "chatml").system("");
    chat.say("Hear me.").unwrap().finish().unwrap();
    assert_eq!(chat.messages()[0], Message::system(""));
    let mut nothing = text_support::chat(&model, "chatml");
    assert_matches!(nothing.answer().map(drop), Ok(()) | Err(Error::Template(_)));
}

#[test]
fn a_message_that_a_template_refuses_is_removed_and_the_chat_goes_on() {
    let model = load();
    let mut chat = chat(&model, "mistral");
    chat.push(Message::new(Role::new("narrator"), "Meanwhile, in the city of David,"));
    assert_matches!(chat.say("Go on.").map(drop), Err(Error::Template(_)));
    assert_eq!(chat.messages().len(), 1);
    chat.messages_mut().clear();
    chat.say("Go on.").unwrap().finish().unwrap();
    assert_eq!(chat.messages().len(), 2);
}

const SYSTEM: &str = "In the days of Noah, of Abraham and of Isaac:";
const QUESTIONS: [&str; 4] = ["Who art thou?", "Whither goest thou?", "And wherefore?", "And then?"];

fn ask(chat: &mut Chat, questions: &[&str]) -> Vec<String> {
    let answer = |question: &&str| chat.say(*question).unwrap().finish().unwrap().0.raw;
    questions.iter().map(answer).collect()
}

#[test]
fn only_tokens_after_an_edit_are_computed_again() {
    let model = load();
    let vocab = model.native().unwrap().vocab();
    let tokens = |text: &str| vocab.tokenize(text, false, true).unwrap().len();
    let expected = ask(&mut chat(&load(), "chatml").system(SYSTEM), &QUESTIONS);
    let mut chat = chat(&model, "chatml").system(SYSTEM);
    assert_eq!(ask(&mut chat, &QUESTIONS[..3]), expected[..3]);
    // The system message and a question are kept, up to the beginning of the answer. The answer itself has become a
    // text of the history, which may be divided into other tokens.
    let kept = {
        let mut before = chat.clone();
        before.messages_mut().truncate(2);
        tokens(before.rendered().unwrap().as_str())
    };
    let mut edited = chat.clone();
    edited.messages_mut()[3] = Message::user("What seest thou from there?");
    edited.messages_mut().truncate(4);
    let (reply, statistics) = edited.answer().unwrap().finish().unwrap();
    let cached = statistics.cached_tokens;
    assert!(cached >= kept, "{cached} of {kept}");
    assert!(cached < statistics.prompt_tokens - 10, "{statistics}");
    assert_eq!(reply.raw, fresh("chatml", &edited.messages()[..4]));
    // The original conversation has not changed, and it continues.
    assert_eq!(chat.messages().len(), 7);
    assert_eq!(ask(&mut chat, &QUESTIONS[3..]), expected[3..]);
    // If the first message was edited, only the tokens before it are reused.
    let mut other = chat.clone().system("Once upon a time:");
    other.messages_mut().truncate(1);
    let (reply, statistics) = other.say("Who art thou?").unwrap().finish().unwrap();
    let before = tokens("<|im_start|>system\n");
    assert!(statistics.cached_tokens <= before + 2, "{statistics}");
    assert_eq!(reply.raw, fresh("chatml", &other.messages()[..2]));
}

#[test]
fn answers_in_many_formats_arrive_in_their_parts_and_as_they_were_written() {
    use autoplace::generate::{Constraint, FinishReason};

    let model = load();
    // Every format is tested in the crate `chat`.
    for sample in test_support::replies::SAMPLES.iter().step_by(4) {
        let format = ReplyFormat::of_template(&sample.template);
        // The prompts of the template below end in the same way as those of the sample's format.
        let source = "{{ tools }}{{ messages[-1].content }}{{ ending }}";
        let template = ChatTemplate::new(source, <_>::default()).unwrap();
        let mut chat = model
            .chat_with(template)
            .variable("ending", sample.prompt.as_str())
            .tools(tools(Tool::new))
            .reply_format(format.clone())
            .with(|generate| generate.constraint(Constraint::choices([sample.text])));
        let mut stream = chat.say("What will the weather be?").unwrap();
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), 0);
        for part in &mut stream {
            match part.unwrap() {
                ReplyPart::Reasoning(text) => reasoning.push_str(&text),
                ReplyPart::Content(text) => content.push_str(&text),
                ReplyPart::ToolCall(_) => calls += 1,
            }
        }
        assert_eq!(stream.finish_reason(), Some(FinishReason::EndOfGeneration));
        let reply = stream.reply().unwrap().clone();
        drop(stream);
        // These are the parts that the parser finds if it gets the whole text at once.
        let mut parser = ReplyParser::new(&format).after_prompt(&sample.prompt).with_tools(&tools(Tool::new));
        parser.push(sample.text);
        let name = sample.name;
        let mut expected = parser.finish();
        expected.finish_reason = Some(FinishReason::EndOfGeneration);
        assert_eq!(reply, expected, "{name}");
        assert_eq!(reply.raw, sample.text, "{name}");
        assert_eq!(reply.tool_calls.len(), 2, "{name}");
        assert_eq!(reasoning, sample.reasoning.unwrap_or_default(), "{name}");
        assert_eq!((&content, calls), (&reply.content, 2), "{name}");
        chat.tool_result(&reply.tool_calls[0], "It will rain.");
        let [_, message, result] = chat.messages() else { panic!("{name}") };
        assert_eq!(message.tool_calls, reply.tool_calls, "{name}");
        assert_eq!(message.reasoning_content, reply.reasoning, "{name}");
        assert_eq!(result.role, Role::TOOL, "{name}");
    }
}
