//! Conversations at their edges: messages of nothing, roles that a template does not know, histories that are changed
//! in the middle, and answers in every format of tool calls. On the demo model.

use crate::chat_reply_support::tools;
use crate::native_support::demo_path;
use autoplace::Model;
use autoplace::chat::{self, ChatTemplate, Message, ReplyFormat, ReplyParser, ReplyPart, Role};
use autoplace::generate::{Chat, Error, Generate};
use autoplace::memory::FlashAttention;
use autoplace::plan::{Context, Request};

fn load() -> Model {
    let mut request = Request::new().context(Context::Tokens(2048));
    // The CPU's fused attention has another rounding for 64 tokens and more than for fewer.
    request.params.flash_attn = FlashAttention::Off;
    let builder = Model::builder(demo_path()).request(request).threads(1);
    builder.load().unwrap()
}

fn short(generate: Generate) -> Generate {
    generate.temperature(0.0).max_tokens(12)
}

fn chat(model: &Model, family: &str) -> Chat {
    let template = ChatTemplate::family(family).unwrap();
    model.chat_with(template).with(short)
}

/// The answer to a history, from a fresh model.
fn fresh(family: &str, history: &[Message]) -> String {
    let model = load();
    let mut chat = chat(&model, family);
    *chat.messages_mut() = history.to_vec();
    chat.answer().unwrap().finish().unwrap().0.raw
}

#[test]
fn messages_of_nothing_are_messages() {
    let model = load();
    for family in chat::FAMILIES {
        let mut chat = chat(&model, family);
        for said in ["", " ", "\n\n"] {
            // The first of a conversation, from a model that knows nothing of it.
            let mut first = self::chat(&model, family);
            let (reply, statistics) = first.say(said).unwrap().finish().unwrap();
            assert!(statistics.prompt_tokens > 0, "{family}");
            assert_eq!(reply.raw, fresh(family, &[Message::user(said)]), "{family}");
            // One after the other.
            chat.say(said).unwrap().finish().unwrap();
        }
        let said: Vec<_> = chat.messages().iter().map(|it| it.role.clone()).collect();
        assert!(said.iter().filter(|role| **role == Role::USER).count() == 3);
        // Nothing at all was said, by anybody.
        let mut empty = chat.clone();
        *empty.messages_mut() = vec![Message::user(""), Message::assistant(""), Message::user("")];
        empty.answer().unwrap().finish().unwrap();
    }
    // A system message of nothing is as good as none, or is there.
    let mut chat = chat(&model, "chatml").system("");
    chat.say("Hear me.").unwrap().finish().unwrap();
    assert_eq!(chat.messages()[0], Message::system(""));
    // A history of nothing is the template's to write, or to refuse.
    let mut nothing = self::chat(&model, "chatml");
    match nothing.answer().map(drop) {
        Ok(()) | Err(Error::Template(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_role_that_a_template_does_not_know_is_written_or_is_its_own_refusal() {
    let model = load();
    let stranger = || Message::new(Role::new("narrator"), "Meanwhile, in the city of David,");
    // One that writes any role.
    let mut chatml = chat(&model, "chatml");
    chatml.push(stranger());
    let (_, statistics) = chatml.say("Go on.").unwrap().finish().unwrap();
    assert!(statistics.generated_tokens > 0);
    let rendered = chatml.rendered().unwrap();
    assert!(
        rendered
            .as_str()
            .contains("<|im_start|>narrator\nMeanwhile")
    );
    // One that knows two.
    let strict = "{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}\
        {{ raise_exception('only user and assistant are known') }}{% endif %}[{{ message.role }}] {{ message.content }}\n\
        {% endfor %}";
    let strict = ChatTemplate::new(strict, <_>::default()).unwrap();
    let mut chat = model.chat_with(strict).with(short);
    chat.push(stranger());
    let refused = chat.say("Go on.").map(drop).unwrap_err();
    assert!(matches!(refused, Error::Template(_)), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("only user and assistant are known"),
        "{refused}"
    );
    // Once it is taken back, there is an answer.
    chat.messages_mut().remove(0);
    chat.answer().unwrap().finish().unwrap();
    assert_eq!(chat.messages().len(), 2);
}

const SYSTEM: &str = "In the days of Noah, of Abraham and of Isaac:";
const QUESTIONS: [&str; 4] = [
    "Who art thou?",
    "Whither goest thou?",
    "And wherefore?",
    "And then?",
];

fn ask(chat: &mut Chat, questions: &[&str]) -> Vec<String> {
    let answer = |question: &&str| chat.say(*question).unwrap().finish().unwrap().0.raw;
    questions.iter().map(answer).collect()
}

#[test]
fn what_is_before_a_change_is_not_computed_again_and_what_is_after_it_is() {
    let model = load();
    let expected = ask(&mut chat(&load(), "chatml").system(SYSTEM), &QUESTIONS);
    let mut chat = chat(&model, "chatml").system(SYSTEM);
    assert_eq!(ask(&mut chat, &QUESTIONS[..3]), expected[..3]);
    // The system message and a question, up to where the answer begins: that is text by now, which may be read as other
    // tokens than the model chose.
    let kept = {
        let mut before = chat.clone();
        before.truncate(2);
        let rendered = before.rendered().unwrap();
        let vocab = model.native().unwrap().vocab();
        vocab
            .tokenize(rendered.as_str(), false, true)
            .unwrap()
            .len()
    };
    let mut edited = chat.clone();
    edited.messages_mut()[3] = Message::user("What seest thou from there?");
    edited.truncate(4);
    let (reply, statistics) = edited.answer().unwrap().finish().unwrap();
    let cached = statistics.cached_tokens;
    assert!(cached >= kept, "{cached} of {kept}");
    assert!(cached < statistics.prompt_tokens - 10, "{statistics}");
    assert_eq!(reply.raw, fresh("chatml", &edited.messages()[..4]));
    // The one that it was cloned from is as it was, and goes on.
    assert_eq!(chat.messages().len(), 7);
    assert_eq!(ask(&mut chat, &QUESTIONS[3..]), expected[3..]);
    // A change of the first message leaves nothing of use but what comes before it.
    let mut other = chat.clone().system("Once upon a time:");
    other.truncate(1);
    let (reply, statistics) = other.say("Who art thou?").unwrap().finish().unwrap();
    let before = "<|im_start|>system\n";
    let vocab = model.native().unwrap().vocab();
    let before = vocab.tokenize(before, false, true).unwrap().len();
    assert!(statistics.cached_tokens <= before + 2, "{statistics}");
    assert_eq!(reply.raw, fresh("chatml", &other.messages()[..2]));
}

#[cfg(feature = "constraints")]
#[test]
fn answers_in_every_format_arrive_in_their_parts_and_as_they_were_written() {
    use autoplace::generate::Constraint;

    let model = load();
    for sample in crate::chat_reply_support::SAMPLES {
        let format = ReplyFormat::of_template(sample.template);
        // A template whose prompts end as those of the format.
        let source = "{{ messages[-1].content }}{{ ending }}";
        let template = ChatTemplate::new(source, <_>::default()).unwrap();
        let mut chat = model
            .chat_with(template)
            .variable("ending", sample.prompt)
            .tools(tools())
            .reply_format(format.clone())
            .with(|generate| generate.constraint(Constraint::choices([sample.text])));
        let mut stream = chat.say("What will the weather be?").unwrap();
        let mut parts = Vec::new();
        for part in &mut stream {
            parts.push(part.unwrap());
        }
        let reply = stream.reply().unwrap().clone();
        drop(stream);
        // What the whole text means, read at once.
        let parser = ReplyParser::new(&format).after_prompt(sample.prompt);
        let mut parser = parser.with_tools(&tools());
        parser.push(sample.text);
        let expected = parser.finish();
        let name = sample.name;
        assert_eq!(reply, expected, "{name}");
        assert_eq!(reply.raw, sample.text, "{name}");
        assert_eq!(reply.tool_calls.len(), 2, "{name}");
        let of = |take: fn(&ReplyPart) -> Option<&str>| -> String {
            parts.iter().filter_map(take).collect()
        };
        let reasoning = of(|part| match part {
            ReplyPart::Reasoning(text) => Some(text),
            _ => None,
        });
        assert_eq!(reasoning, sample.reasoning.unwrap_or_default(), "{name}");
        let content = of(|part| match part {
            ReplyPart::Content(text) => Some(text),
            _ => None,
        });
        assert_eq!(content, reply.content, "{name}");
        let calls = parts
            .iter()
            .filter(|part| matches!(part, ReplyPart::ToolCall(_)));
        assert_eq!(calls.count(), 2, "{name}");
        let message = chat.messages().last().unwrap();
        assert_eq!(message.tool_calls, reply.tool_calls, "{name}");
        assert_eq!(message.reasoning_content, reply.reasoning, "{name}");
    }
}
