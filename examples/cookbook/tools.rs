//! Tools: the model sees functions, calls one, and continues with its result. If a template cannot show tools to the
//! model, the request fails; otherwise the model would simply never call a tool.

use std::path::Path;

use anyhow::Result;
use autoplace::chat::{ChatTemplate, SpecialTokens};
use autoplace::{Model, Tool};
use serde_json::json;

const TEMPLATE: &str = "{{ tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

pub fn run(path: &Path) -> Result<()> {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let weather = Tool::new("weather", "The weather of a city.", city);
    let model = Model::load(path)?;
    // `model.chat()?` uses the model's own template; this model ships none.
    let template = ChatTemplate::new(TEMPLATE, SpecialTokens::new())?;
    assert!(template.supports_tools());
    let mut chat = model.chat_with(template).tools([weather]).max_tokens(24);
    let (mut reply, _) = chat.say("Is it raining in Paris?")?.finish()?;
    while !reply.tool_calls.is_empty() {
        for call in &reply.tool_calls {
            println!("{}({})", call.name, call.arguments);
            chat.tool_result(call, "rain, 12 degrees");
        }
        (reply, _) = chat.answer()?.finish()?;
    }
    println!("{}", reply.content);
    Ok(())
}
