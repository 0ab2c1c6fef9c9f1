//! Server-sent events: a handler of a web server sends the parts of a chat's answer as they are generated. The stream
//! of `say_async` owns its chat, so it outlives the handler. If the client goes away, the text ends.

use std::path::Path;

use anyhow::Result;
use autoplace::chat::ChatTemplate;
use autoplace::{Engine, Model, ReplyPart, generate};
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::{Router, routing::post};
use futures::{Stream, StreamExt};
use tower::ServiceExt;

type Refused = (StatusCode, String);

async fn ask(
    State(engine): State<Engine>,
    question: String,
) -> Result<Sse<impl Stream<Item = Result<Event, generate::Error>>>, Refused> {
    let chat = engine.chat_with(ChatTemplate::family("chatml").expect("a family")).max_tokens(24);
    // Before the stream begins, an error can still be a status.
    let answer = chat.say_async(question).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(Sse::new(answer.map(|part| {
        Ok(match part? {
            ReplyPart::Content(text) => Event::default().data(text),
            other => Event::default().event("other").json_data(other).expect("a part is JSON"),
        })
    })))
}

pub fn run(path: &Path) -> Result<()> {
    let model = Model::builder(path).parallel(8, 256).load()?;
    let routes = Router::new().route("/ask", post(ask)).with_state(Engine::new(&model)?);
    // In a program: `axum::serve(listener, routes).await`.
    tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
        let response = routes.oneshot(Request::post("/ask").body(Body::from("Whence comest thou?"))?).await?;
        println!("{}", String::from_utf8_lossy(&to_bytes(response.into_body(), 1 << 20).await?));
        Ok(())
    })
}
