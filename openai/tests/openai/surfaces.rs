//! Random requests of the other APIs, without HTTP. Each of them is either answered or refused.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::{any_json, api, one_of};

/// Names of fields in all APIs, and words that may occur in the fields.
const NAMES: &str = "type role content text input output id name call_id arguments tool_use_id signature thinking source \
    data format schema summary function encrypted_content refusal";
const FIELDS: &str = "messages system tools tool_choice thinking output_config stop_sequences metadata max_tokens stream \
    temperature chat_template_kwargs container model input instructions text reasoning include previous_response_id \
    store top_logprobs";

/// A value in which names from the APIs occur.
fn any_field() -> impl Strategy<Value = Value> {
    let words = one_of(
        "text user assistant system message tool_use tool_result thinking document function auto any tool \
        input_text output_text function_call function_call_output reasoning item_reference required json_schema",
    );
    let leaf = prop_oneof![any_json(), words.prop_map(Value::from)];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let names = one_of(NAMES);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..4)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_request_of_another_api_does_worse_than_an_error(
        fields in prop::collection::vec((one_of(FIELDS), any_field()), 0..4),
    ) {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
        for (name, value) in fields {
            body[name] = value;
        }
        let bytes = body.to_string();
        let mut asked = body.clone();
        asked["messages"].take();
        if asked["input"].is_null() {
            asked["input"] = "a".into();
        }
        let asked = asked.to_string();
        for outcome in [api().respond(asked.as_bytes()).map(drop), api().count_response_tokens(asked.as_bytes()).map(drop)] {
            if let Err(error) = outcome {
                prop_assert!((400..500).contains(&error.status) || error.status == 503, "{error}: {asked}");
            }
        }
        for outcome in [api().message(bytes.as_bytes()).map(drop), api().count_message_tokens(bytes.as_bytes()).map(drop)] {
            if let Err(error) = outcome {
                prop_assert!((400..500).contains(&error.status) || error.status == 503, "{error}: {body}");
                prop_assert_eq!(&error.to_anthropic_json()["type"], "error");
            }
        }
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!([api().message(&bytes), api().respond(&bytes)].into_iter().all(|outcome| outcome.is_err_and(|error| error.status == 400)));
    }
}
