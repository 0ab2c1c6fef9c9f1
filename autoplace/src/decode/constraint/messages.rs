//! Turns llguidance's messages into the form in which errors show them.

/// llguidance's message as one line.
pub(super) fn said(message: &str) -> String {
    let message = message.split("<non-verbose/>").next().unwrap_or_default();
    let message = message.split("<backtrace>").next().unwrap_or_default();
    if message.contains("missing special token prefix") {
        // This is the message of TokTrie::get_special_tokens if the tree has no control token.
        return "it names a control token, which no constraint allows".to_owned();
    }
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut line = lines.join("; ");
    if let Some((at, _)) = line.char_indices().nth(300) {
        line.truncate(at);
        line.push_str("...");
    }
    line
}
