//! Parameters of vLLM and llama-server: aliases for our names, and parameters that are not supported.
//!
//! If a parameter is not supported, it is refused by name, unless its value has no effect. So no parameter is ignored
//! that would change the answer. The whole list is in docs/chat-completions.md, and `tests/openai/parameters.rs`
//! compares it with the lists of both servers.

use serde_json::Value;

use super::error::ApiError;
use super::reading::{self, Body};

/// Aliases of parameters. An alias is used if the parameter is missing under its main name.
pub(super) const ALIASES: [(&str, &str); 4] = [
    ("repetition_penalty", "repeat_penalty"),
    ("n_predict", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("n_cmpl", "n"),
];

/// Parameters that neither endpoint supports. Beside each are the values that have no effect, as JSON, separated by
/// spaces.
const REFUSED: [(&str, &str); 60] = [
    // Parameters of OpenAI's chats.
    ("audio", "false"),
    ("functions", "false"),
    ("function_call", "false"),
    ("prediction", "false"),
    ("web_search_options", "false"),
    // Parameters of vLLM.
    ("use_beam_search", "false"),
    ("length_penalty", "1 0"),
    ("include_stop_str_in_output", "false"),
    ("skip_special_tokens", "true"),
    ("truncate_prompt_tokens", ""),
    ("prompt_logprobs", "0"),
    ("prompt_embeds", "[]"),
    ("allowed_token_ids", "[]"),
    ("bad_words", "[]"),
    ("chat_template", ""),
    ("include_reasoning", "true"),
    ("mm_processor_kwargs", "{}"),
    ("logits_processors", "[]"),
    ("return_tokens_as_token_ids", "false"),
    ("return_token_ids", "false"),
    ("cache_salt", "\"\""),
    ("kv_transfer_params", "{}"),
    ("vllm_xargs", "{}"),
    ("max_repetition_pattern_size", "0"),
    ("min_repetition_pattern_size", "0"),
    ("repetition_min_count", "0"),
    ("guided_whitespace_pattern", "\"\""),
    ("thinking_token_budget", ""),
    ("watermarking", "false"),
    ("logprob_token_ids", "[]"),
    ("media_io_kwargs", "{}"),
    ("return_weight_versions", "false"),
    ("routed_experts_prompt_start", ""),
    ("return_token_offsets", "false"),
    ("return_prompt_text", "false"),
    ("mm_payload", "{}"),
    ("return_mm_kwargs", "false"),
    ("ec_transfer_params", "{}"),
    ("repetition_detection", "{}"),
    // Parameters of llama-server.
    ("return_tokens", "false"),
    ("n_indent", "0"),
    ("t_max_predict_ms", "-1 0"),
    ("response_fields", "[]"),
    ("n_probs", "0"),
    ("post_sampling_probs", "false"),
    ("grammar_lazy", "false"),
    ("grammar_triggers", "[]"),
    ("reasoning_format", "\"auto\" \"deepseek\""),
    ("parse_tool_calls", "true"),
    ("reasoning_control", "false"),
    ("reasoning_budget_tokens", "-1"),
    ("thinking_budget_tokens", "-1"),
    ("chat_format", ""),
    ("preserved_tokens", "[]"),
    ("reasoning_budget_start_tag", "\"\""),
    ("reasoning_budget_end_tags", "[]"),
    ("reasoning_budget_end_tag", "\"\""),
    ("reasoning_budget_message", "\"\""),
    ("chat_parser", "\"\""),
    ("generation_prompt", "\"\""),
];
/// The first list has the parameters in [`REFUSED`] that `/infill` does support. The second list has further parameters
/// that `/infill` refuses.
const INFILL: [&str; 3] = ["n_indent", "t_max_predict_ms", "response_fields"];
const REFUSED_IN_INFILL: [(&str, &str); 2] = [("n", "1"), ("logprobs", "")];
/// The first list has the further parameters that `/v1/chat/completions` refuses, and the second list those that
/// `/v1/completions` refuses.
const REFUSED_IN_CHATS: [(&str, &str); 2] = [("echo", "false"), ("add_special_tokens", "false")];
const REFUSED_IN_TEXTS: [(&str, &str); 4] =
    [("suffix", "\"\""), ("echo", "false"), ("best_of", "1"), ("add_special_tokens", "true")];

/// The name for which an alias stands. Other names stand for themselves.
pub(super) fn without_alias(name: &str) -> &str {
    ALIASES.into_iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Refuses parameters of chats or completions that are not supported and would change the answer.
pub(super) fn check(body: &Body<'_>, is_chat: bool) -> Result<(), ApiError> {
    let own: &[(&str, &str)] = if is_chat { &REFUSED_IN_CHATS } else { &REFUSED_IN_TEXTS };
    refuse(body, &REFUSED, "")?;
    refuse(body, own, "")
}

/// Refuses parameters of `/infill` that are not supported and would change the answer.
pub(super) fn check_infill(body: &Body<'_>) -> Result<(), ApiError> {
    let refused: Vec<_> = REFUSED.into_iter().filter(|(name, _)| !INFILL.contains(name)).collect();
    refuse(body, &refused, "")?;
    refuse(body, &REFUSED_IN_INFILL, " by /infill")
}

/// Refuses these parameters unless their values have no effect. Beside each are the values without effect, as JSON,
/// separated by spaces. `false` has no effect either, unless the list contains `true`. The message of the error ends
/// with `why`.
pub(super) fn refuse(body: &Body<'_>, refused: &[(&'static str, &str)], why: &str) -> Result<(), ApiError> {
    match refused.iter().find(|(name, nothing)| has_effect(body, name, nothing)) {
        Some((name, _)) => Err(ApiError::unsupported(*name, format!("`{name}` is not supported{why}"))),
        None => Ok(()),
    }
}

/// Whether a parameter is present with a value that has an effect.
fn has_effect(body: &Body<'_>, name: &str, nothing: &str) -> bool {
    let Some(given) = body.get(name) else { return false };
    // All values without effect are short.
    if given.get().len() > 64 {
        return true;
    }
    let Ok(given) = reading::value::<Value>(given, name) else { return true };
    let is_nothing = |nothing: &str| match (serde_json::from_str::<Value>(nothing).ok(), &given) {
        (Some(nothing), given) if nothing.is_number() => nothing.as_f64() == given.as_f64(),
        (Some(nothing), given) => nothing == *given,
        (None, _) => false,
    };
    let is_off = given == Value::Bool(false) && nothing != "true";
    !is_off && !nothing.split(' ').any(is_nothing)
}
