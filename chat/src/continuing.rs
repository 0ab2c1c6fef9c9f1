//! Prompts that end inside the last message, so that the model continues this message: transformers'
//! `continue_final_message`.

use serde_json::Value;

use super::error::Error;

/// A mark that is appended to the last message, so that the end of that message can be found in the prompt
/// (`chat_template_utils.py`, `render_jinja_template`).
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The text that the model should continue: the content of the last message, or the last text among its parts.
fn final_text(messages: &mut [Value]) -> Option<&mut String> {
    match messages.last_mut()?.get_mut("content")? {
        Value::String(text) => Some(text),
        Value::Array(parts) => {
            let texts = parts.iter_mut().filter_map(|part| part.get_mut("text"));
            match texts.last()? {
                Value::String(text) => Some(text),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Appends the mark to the last message.
pub(super) fn mark(messages: &mut [Value]) -> Result<(), Error> {
    let text = final_text(messages).ok_or(Error::Continue { reason: "it has no text" })?;
    text.push_str(TAG);
    Ok(())
}

/// Finds the mark in the prompt. Returns how many bytes the prompt has up to the end of the last message.
pub(super) fn end(prompt: &str, messages: &[Value]) -> Result<usize, Error> {
    let mut messages = messages.to_vec();
    let text = final_text(&mut messages).map(|text| text.trim().to_owned());
    let tag = prompt.rfind(TAG.trim_end());
    let (Some(tag), true) = (tag, text.is_some_and(|text| prompt.contains(&text))) else {
        return Err(Error::Continue { reason: "the template does not show the message unchanged" });
    };
    if prompt[tag..].starts_with(TAG) {
        return Ok(tag);
    }
    // Templates remove white space around messages, so the message that is continued ends without white space too.
    Ok(prompt[..tag].trim_end().len())
}
