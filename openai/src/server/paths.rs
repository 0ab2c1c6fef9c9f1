//! The paths that a model answers, with their methods. Errors list these paths. A pool uses them to refuse an unknown
//! path without loading a model.

#[cfg(feature = "pool")]
use axum::http::Method;

/// Each path in axum's notation, and its methods.
pub(super) static PATHS: [(&str, &[&str]); 24] = [
    ("/v1/chat/completions", &["POST"]),
    ("/v1/chat/completions/input_tokens", &["POST"]),
    ("/v1/completions", &["POST"]),
    ("/v1/responses", &["POST"]),
    ("/v1/responses/input_tokens", &["POST"]),
    ("/v1/responses/{id}", &["GET", "DELETE"]),
    ("/v1/messages", &["POST"]),
    ("/v1/messages/count_tokens", &["POST"]),
    ("/v1/embeddings", &["POST"]),
    ("/v1/rerank", &["POST"]),
    ("/v2/rerank", &["POST"]),
    ("/rerank", &["POST"]),
    ("/tokenize", &["POST"]),
    ("/detokenize", &["POST"]),
    ("/apply-template", &["POST"]),
    ("/infill", &["POST"]),
    ("/metrics", &["GET"]),
    ("/props", &["GET"]),
    ("/slots", &["GET"]),
    ("/v1/models", &["GET"]),
    ("/models", &["GET"]),
    ("/v1/models/{*name}", &["GET"]),
    ("/lora-adapters", &["GET", "POST"]),
    ("/health", &["GET"]),
];

/// All paths in one line.
pub(super) fn listed() -> String {
    let each = |&(path, methods): &(&str, &'static [&'static str])| {
        let path = path.replace("{id}", "ID").replace("{*name}", "NAME");
        methods.iter().map(move |method| format!("{method} {path}"))
    };
    PATHS.iter().flat_map(each).collect::<Vec<_>>().join(", ")
}

/// Whether a model answers a path.
#[cfg(feature = "pool")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Yes,
    /// The path exists, but with other methods.
    OtherMethod,
    No,
}

#[cfg(feature = "pool")]
pub(super) fn known(method: &Method, path: &str) -> Known {
    // As in axum, a path that is listed literally takes precedence over one with a parameter.
    let exact = PATHS.iter().find(|(listed, _)| *listed == path);
    let Some((_, methods)) = exact.or_else(|| PATHS.iter().find(|(listed, _)| is_form_of(listed, path))) else {
        return Known::No;
    };
    let is_taken = methods.contains(&method.as_str()) || (method == Method::HEAD && methods.contains(&"GET"));
    if is_taken { Known::Yes } else { Known::OtherMethod }
}

/// Whether the path matches a form whose last part is a parameter.
#[cfg(feature = "pool")]
fn is_form_of(form: &str, path: &str) -> bool {
    let Some((begin, parameter)) = form.split_once('{') else { return false };
    let rest = path.strip_prefix(begin).unwrap_or_default();
    !rest.is_empty() && (parameter.starts_with('*') || !rest.contains('/'))
}

#[cfg(all(test, feature = "pool"))]
mod tests {
    use super::{Known, known};
    use axum::http::Method;

    #[test]
    fn a_path_is_known_with_its_methods_and_parameters() {
        for (method, path, expected) in [
            (Method::POST, "/v1/completions", Known::Yes),
            (Method::GET, "/v1/completions", Known::OtherMethod),
            (Method::HEAD, "/health", Known::Yes),
            (Method::GET, "/v1/responses/resp-1", Known::Yes),
            (Method::POST, "/v1/responses/input_tokens", Known::Yes),
            (Method::GET, "/v1/responses/input_tokens", Known::OtherMethod),
            (Method::GET, "/v1/responses/a/b", Known::No),
            (Method::GET, "/v1/responses/", Known::No),
            (Method::GET, "/v1/models/org/a:b", Known::Yes),
            (Method::POST, "/v1/completions/", Known::No),
            (Method::GET, "/", Known::No),
            (Method::GET, "/v1/{id}", Known::No),
        ] {
            assert_eq!(known(&method, path), expected, "{method} {path}");
        }
    }
}
