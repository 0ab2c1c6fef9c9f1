//! Chat templates are rendered as in Hugging Face's transformers. The output of transformers is in
//! `chat_templates/*.json`, next to the templates (`cargo xtask templates --fixtures` writes these files).

use std::fs;
use std::path::{Path, PathBuf};

use autoplace_chat::{ChatTemplate, Conversation, Error, LocalTime};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates")
}

fn read(name: &str) -> Value {
    fs::read_to_string(root().join(name)).unwrap().parse().unwrap()
}

fn list(value: &Value) -> Option<Vec<Value>> {
    value.as_array().cloned()
}

/// Makes a conversation from a history.
fn conversation(history: &Value, tools: &Value) -> Conversation {
    let messages = list(&history["messages"]).unwrap();
    let add = history["add_generation_prompt"] == true;
    let then = LocalTime::new(2025, 7, 4, 16, 5, 9).unwrap();
    let mut conversation = Conversation::from_json(messages).add_generation_prompt(add).at(then);
    let tools = match &history["tools"] {
        Value::String(set) => list(&tools[set.as_str()]),
        given => list(given),
    };
    if let Some(tools) = tools {
        conversation = conversation.tools_json(tools);
    }
    if let Some(documents) = list(&history["documents"]) {
        conversation = conversation.documents(documents);
    }
    if history["continue_final_message"] == true {
        conversation = conversation.continue_final_message();
    }
    let variables = history["variables"].as_object().cloned().unwrap_or_default();
    variables.into_iter().fold(conversation, |conversation, (name, value)| conversation.variable(name, value))
}

/// How we render a history. transformers silently drops tools if a template does not show them.
fn rendered(source: &str, history: &Value, tools: &Value) -> Result<String, Error> {
    let special =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, token)| (name.to_owned(), token.to_owned()));
    let template =
        ChatTemplate::new(source, special.into())?.with_control_tokens(Vec::<String>::new()).describe_tools(false);
    let rendered = match template.render(&conversation(history, tools)) {
        Err(Error::ToolsNotShown { .. }) => {
            let mut without = history.clone();
            without["tools"] = Value::Null;
            template.render(&conversation(&without, tools))
        }
        rendered => rendered,
    };
    Ok(rendered?.into_string())
}

/// Renders every template in a folder with every history, and compares the results with those of transformers. Prints a
/// table: how many prompts are equal, how many both refuse, how many only transformers refuses, and how many are
/// different.
fn compare(folder: &Path, theirs: &Value) -> [usize; 4] {
    let (histories, tools) = (read("histories.json"), read("tools.json"));
    let mut all = [0; 4];
    println!("{:<60} equal  both refuse  rendered here, refused there  differs", "template");
    for (name, by_history) in theirs.as_object().unwrap() {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let mut counts = [0; 4];
        for history in histories.as_array().unwrap() {
            let what = history["name"].as_str().unwrap();
            let column = match (by_history[what]["text"].as_str(), rendered(&source, history, &tools)) {
                (Some(theirs), Ok(ours)) if theirs == ours => 0,
                (None, Err(_)) => 1,
                (None, Ok(ours)) => {
                    println!("{name} with `{what}`, which transformers refuses:\n  autoplace    {ours:?}");
                    2
                }
                (theirs, ours) => {
                    println!("{name} with `{what}`:\n  transformers {theirs:?}\n  autoplace    {ours:?}");
                    3
                }
            };
            counts[column] += 1;
            all[column] += 1;
        }
        let [equal, refused, lenient, differs] = counts;
        println!("{name:<60} {equal:>5}  {refused:>11}  {lenient:>28}  {differs:>7}");
    }
    all
}

/// Asserts that the templates of the tests give the same prompts and errors as in transformers.
fn assert_same(set: &str) {
    let [equal, refused, lenient, differs] = compare(&root().join(set), &read(&format!("{set}.json")));
    assert_eq!((lenient, differs), (0, 0), "renderings that are not those of transformers");
    assert!(equal + refused >= 5 * 50, "{equal} {refused}");
}

#[test]
fn templates_of_each_family_render_as_in_transformers() {
    assert_same("families");
}

#[test]
fn the_whole_language_means_the_same_as_in_python() {
    assert_same("language");
}

#[test]
fn recorded_cases_render_as_in_transformers() {
    for case in read("cases.json").as_array().unwrap() {
        let history = serde_json::json!({"messages": case["messages"], "add_generation_prompt": true});
        let rendered = rendered(case["template"].as_str().unwrap(), &history, &Value::Null);
        match case["right"].as_str() {
            Some(right) => assert_eq!(rendered.unwrap(), right, "{}", case["name"]),
            None => assert!(rendered.is_err(), "{}", case["name"]),
        }
    }
}

#[test]
#[ignore = "wants a folder of templates and what transformers makes of them: cargo xtask templates DIR"]
fn a_folder_of_templates_renders_as_in_transformers() {
    let folder = PathBuf::from(std::env::var_os("AUTOPLACE_TEMPLATES").unwrap());
    let theirs = fs::read_to_string(std::env::var_os("AUTOPLACE_TEMPLATES_RENDERED").unwrap()).unwrap();
    let [.., differs] = compare(&folder, &theirs.parse().unwrap());
    assert_eq!(differs, 0, "renderings that are not those of transformers");
}
