//! Conversations through the public API, on the demo model: their history, how much of it is computed, and the parts of
//! answers.

use crate::text_support::{chat, demo, in_worker, request};
use autoplace::Model;
use autoplace::chat::{self, ChatTemplate, Message, ReplyPart, Role, Tool};
use autoplace::generate::{Chat, ChatStream, Constraint, Engine, Error, FinishReason, ToolChoice};
use autoplace::gguf::Header;
use serde_json::json;
use test_support::{demo_path, random_weights};

fn load() -> Model {
    demo(2048, 1, false)
}

fn template() -> ChatTemplate {
    ChatTemplate::family("chatml").unwrap()
}

/// The text of an answer, and how many prompt tokens were computed for it.
fn ask(chat: &mut Chat, text: &str) -> (String, usize) {
    let (reply, statistics) = chat.say(text).unwrap().finish().unwrap();
    let new = statistics.prompt_tokens - statistics.cached_tokens;
    (reply.content, new)
}

#[test]
fn a_turn_computes_only_new_tokens() {
    let model = load();
    // Only these tokens are computed: the end of the last answer, the question, and the header of the next answer.
    let written = "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n";
    let written = tokens(&model, written);
    let mut chat = chat(&model, "chatml").system("Speak as the king spake unto his servants.");
    let (first, all) = ask(&mut chat, "Whence comest thou?");
    assert!(!first.is_empty() && all > 20, "{first:?}, {all}");
    for turn in 0..4 {
        let (answer, new) = ask(&mut chat, "And then?");
        assert!(new <= written + 2, "turn {turn}: {new} of {written}");
        assert!(!answer.is_empty());
    }
    let roles: Vec<&Role> = chat.messages().iter().map(|message| &message.role).collect();
    assert_eq!(roles[..3], [&Role::SYSTEM, &Role::USER, &Role::ASSISTANT]);
    assert_eq!(chat.messages().len(), 11);
    assert_eq!(chat.messages()[2].content, first.trim());
}

fn tokens(model: &Model, text: &str) -> usize {
    model.native().unwrap().vocab().tokenize(text, false, true).unwrap().len()
}

#[test]
fn an_answer_that_is_dropped_stays_as_far_as_it_came() {
    let model = load();
    let mut chat = chat(&model, "chatml");
    let mut stream = chat.say("Sing unto me.").unwrap();
    let mut received = String::new();
    while received.len() < 8 {
        if let ReplyPart::Content(text) = stream.next().unwrap().unwrap() {
            received.push_str(&text);
        }
    }
    assert_eq!(stream.finish_reason(), None);
    drop(stream);
    assert_eq!(chat.messages()[1], Message::assistant(received));
    let (_, new) = ask(&mut chat, "Again.");
    assert!(new < 60, "{new}");
}

#[test]
fn an_answer_is_its_text_or_its_parts_and_says_what_cut_it() {
    let model = load();
    let settings = chat(&model, "chatml").temp(0.0).max_tokens(6);
    let (reply, statistics) = settings.clone().say("Sing unto me.").unwrap().finish().unwrap();
    assert_eq!(reply.finish_reason, Some(FinishReason::MaxTokens));
    assert_eq!(statistics.finish_reason, reply.finish_reason);
    assert_eq!(settings.clone().say("Sing unto me.").unwrap().text().unwrap(), reply.content);
    let mut parts = String::new();
    let mut talk = settings.clone();
    for part in talk.say("Sing unto me.").unwrap() {
        if let ReplyPart::Content(text) = part.unwrap() {
            parts.push_str(&text);
        }
    }
    assert_eq!(parts, reply.content);
    let stopped = settings.stop(parts.trim().chars().last().unwrap());
    let (reply, _) = { stopped }.say("Sing unto me.").unwrap().finish().unwrap();
    assert_eq!(reply.finish_reason, Some(FinishReason::StopString));
}

#[test]
fn a_chat_behind_a_lock_answers_with_the_lock_held() {
    let model = load();
    let locked = std::sync::Mutex::new(chat(&model, "chatml"));
    let stream = ChatStream::say(locked.lock().unwrap(), "Hear me.").unwrap();
    assert!(locked.try_lock().is_err());
    let text = stream.text().unwrap();
    let chat = locked.lock().unwrap();
    assert_eq!(chat.messages()[1].content, text);
    drop(chat);
    // If a question is refused, it is removed from the history.
    let long = ChatStream::say(locked.lock().unwrap(), "long ".repeat(5000)).map(drop);
    assert_matches!(long, Err(Error::PromptTooLong { .. }));
    assert_eq!(locked.lock().unwrap().messages().len(), 2);
}

#[test]
fn conversations_of_one_engine_go_on_side_by_side_here_and_in_a_worker() {
    let questions = ["Whence comest thou?", "And then?", "And who was with thee?"];
    let systems = ["Speak as a king.", "Answer the people of Israel.", "Be brief."];
    let say_all = |mut chat: Chat| {
        for question in questions {
            chat.say(question).unwrap().finish().unwrap();
        }
        chat.messages().to_vec()
    };
    let there = in_worker(&demo_path(), request(4 * 2048, 4, false));
    for model in [demo(4 * 2048, 4, false), there] {
        let expected = systems.map(|system| say_all(chat(&model, "chatml").system(system)));
        let engine = Engine::new(&model).unwrap();
        let begin = || engine.chat_with(template()).with(|generate| generate.temp(0.0).max_tokens(12));
        std::thread::scope(|scope| {
            let chats = systems.map(|system| {
                let chat = begin().system(system);
                scope.spawn(|| say_all(chat))
            });
            assert_eq!(chats.map(|chat| chat.join().unwrap()), expected);
        });
        // This text is so long that it must wait for its reader.
        let mut cut = begin().with(|generate| generate.max_tokens(1000));
        let mut stream = cut.say(questions[0]).unwrap();
        stream.next().unwrap().unwrap();
        let handle = stream.abort_handle();
        std::thread::spawn(move || handle.abort()).join().unwrap();
        assert!(stream.all(|part| part.is_ok()));
        assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted));
        drop(stream);
        assert_eq!(cut.messages().len(), 2);
    }
}

#[test]
fn a_call_can_be_forced_and_after_its_result_the_model_is_free() {
    let tool = |name: &str| {
        let days = json!({"$ref": "#/$defs/days"});
        let schema = json!({
            "$defs": {"days": {"type": "integer", "minimum": 3, "maximum": 7}},
            "properties": {"default": days, "days": days}, "required": ["days"], "additionalProperties": false,
        });
        Tool::new(name, "Goes.", schema)
    };
    let template = ChatTemplate::new("{{ tools }}{{ messages[-1].content }}", <_>::default());
    let all = load().chat_with(template.unwrap()).tools([tool("walk"), tool("ride")]);
    let chat = |choice| all.clone().with(|request| request.max_tokens(200)).tool_choice(choice);
    for (choice, names) in
        [(ToolChoice::Required, &["walk", "ride"][..]), (ToolChoice::Function("ride".into()), &["ride"])]
    {
        let mut chat = chat(choice);
        let (reply, _) = chat.say("How far is it to Nineveh?").unwrap().finish().unwrap();
        let [call] = &reply.tool_calls[..] else { panic!("{reply:?}") };
        assert!(names.contains(&&*call.name) && reply.content.is_empty(), "{reply:?}");
        assert!((3..=7).contains(&call.arguments["days"].as_i64().unwrap()), "{reply:?}");
        chat.tool_result(call, "three days' journey");
        let (reply, _) = chat.answer().unwrap().finish().unwrap();
        assert!(reply.tool_calls.is_empty() && !reply.content.is_empty(), "{reply:?}");
    }
    let other = chat(ToolChoice::Required).with(|request| request.constraint(Constraint::json_object()));
    for mut chat in [chat(ToolChoice::Function("fly".into())), other] {
        assert!(matches!(chat.say("Go.").unwrap_err(), Error::Constraint { .. }));
        assert!(chat.messages().is_empty());
    }
}

#[test]
fn an_answer_under_a_constraint_has_no_reasoning() {
    let source = "{{ messages[-1].content }}{% if enable_thinking is not false %} long{% endif %}{# </think> #}<think>";
    let chat = load().chat_with(ChatTemplate::new(source, <_>::default()).unwrap());
    let mut chat = chat.with(|request| request.constraint(Constraint::choices(["yes"])));
    let (reply, _) = chat.say("Is it?").unwrap().finish().unwrap();
    assert_eq!((&*reply.content, reply.reasoning), ("yes", None));
    assert_eq!(chat.rendered().unwrap().as_str(), "yes<think>");
    assert_eq!(chat.variable("enable_thinking", true).rendered().unwrap().as_str(), "yes long<think>");
}

#[test]
fn text_from_a_person_is_never_a_control_token() {
    let model = load();
    let vocab = model.native().unwrap().vocab();
    let bos = vocab.bos().unwrap();
    let written = String::from_utf8(vocab.piece(bos, true).unwrap()).unwrap();
    let template = template().with_control_tokens([written.clone()]);
    let computed = |text: &str| {
        let mut chat =
            model.chat_with(template.clone()).with(|generate| generate.temp(0.0).max_tokens(1).cache_prompt(false));
        let (_, statistics) = chat.say(text).unwrap().finish().unwrap();
        statistics.prompt_tokens
    };
    // If this text were read as a control token, it would be a single token.
    assert!(computed(&written) > computed("") + 1);
}

#[test]
fn a_model_without_a_template_is_an_error() {
    assert_matches!(load().chat(), Err(Error::Template(error)) if matches!(**error, chat::Error::NoTemplate { .. }));
}

#[test]
fn the_settings_of_a_chat_are_those_of_its_answers() {
    let model = load();
    let answer = |set: fn(Chat) -> Chat| {
        let hot = model.chat_with(template()).max_tokens(16).temp(50.0).seed(1);
        ask(&mut set(hot), "Whence comest thou?").0
    };
    let likeliest = ask(&mut model.chat_with(template()).max_tokens(16).temp(0.0), "Whence comest thou?").0;
    let hot = answer(|chat| chat.top_k(0).top_p(1.0).min_p(0.0));
    assert_ne!(hot, likeliest);
    assert_eq!(answer(|chat| chat.top_k(1)), likeliest);
    assert_eq!(answer(|chat| chat.top_p(0.0)), likeliest);
    assert_eq!(answer(|chat| chat.min_p(1.0)), likeliest);
    assert_ne!(answer(|chat| chat.top_k(0).top_p(1.0).min_p(0.0).seed(2)), hot);
}

#[test]
fn an_engine_begins_conversations_with_the_models_own_template() {
    const SOURCE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let folder = tempfile::tempdir().unwrap();
    let mut sketch = random_weights::all().into_iter().find(|sketch| sketch.arch == "llama").unwrap().in_floats();
    sketch.vocabulary();
    sketch.text("tokenizer.chat_template", SOURCE);
    let path = random_weights::write(&sketch, folder.path());
    let model = Model::builder(&path).n_ctx(256).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let answer = |chat: Chat| {
        let mut chat = chat.with(|generate| generate.temp(0.0).max_tokens(6).ignore_eos());
        let (reply, statistics) = chat.say("And then?").unwrap().finish().unwrap();
        (reply.content, statistics.prompt_tokens)
    };
    let with = engine.chat_with(ChatTemplate::from_header(&Header::open(&path).unwrap()).unwrap());
    assert_eq!(answer(engine.chat().unwrap()), answer(with));

    let engine = Engine::new(&load()).unwrap();
    assert_matches!(engine.chat(), Err(Error::Template(error)) if matches!(**error, chat::Error::NoTemplate { .. }));
}
