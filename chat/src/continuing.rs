//! Prompts that end within the last message, for the model to go on with: transformers' `continue_final_message`.

use serde_json::Value;

use super::error::Error;

/// What is put behind the last message to find its end in the prompt (`chat_template_utils.py`,
/// `render_jinja_template`).
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The text that is continued: the content of the last message, or the last text among its parts.
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

/// Marks the end of the last message.
pub(super) fn mark(messages: &mut [Value]) -> Result<(), Error> {
    let text = final_text(messages).ok_or(Error::Continue { reason: "there is none with a text" })?;
    text.push_str(TAG);
    Ok(())
}

/// Where the last message ends in a prompt in which its end is marked: the length in bytes of what is left.
pub(super) fn end(prompt: &str, messages: &[Value]) -> Result<usize, Error> {
    let mut messages = messages.to_vec();
    let text = final_text(&mut messages).map(|text| text.trim().to_owned());
    let tag = prompt.rfind(TAG.trim_end());
    let (Some(tag), true) = (tag, text.is_some_and(|text| prompt.contains(&text))) else {
        return Err(Error::Continue { reason: "the template does not show it as it is" });
    };
    if prompt[tag..].starts_with(TAG) {
        return Ok(tag);
    }
    // The template trims messages, so that the one to be continued ends without whitespace too.
    Ok(prompt[..tag].trim_end().len())
}
