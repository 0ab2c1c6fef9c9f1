//! A model that is watched is re-placed automatically: in the middle of a text, and while it is idle.

use std::time::Duration;

use crate::replace_support::{builder, generations, request};
use crate::sim_support::card;
use crate::text_support::PROMPT;
use autoplace::Model;
use autoplace::load::Replacement;
use autoplace::machine::mib;
use autoplace::watch::Sentinel;
use test_support::{demo_path, wait};

/// The demo model, on any devices that have room.
fn loaded() -> Model {
    builder(&demo_path(), &request().n_ubatch(64)).attempts(4).load().unwrap()
}

fn sentinel(model: &Model) -> Sentinel {
    let builder = Sentinel::builder().interval(Duration::from_millis(1)).memory_below(64 << 10);
    builder.auto_replace(0.05).watch(model).unwrap()
}

#[test]
fn under_pressure_a_text_goes_on_elsewhere_and_back_when_there_is_room() {
    own_process!();
    let gpu = card(mib(64));
    let model = loaded();
    assert!(model.placement().full_offload);
    let generate = generations(&model, PROMPT, 400)[1].clone();
    let expected = generate.clone().text().unwrap();

    let sentinel = sentinel(&model);
    let mut stream = generate.stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    let layers = || model.placement().n_gpu_layers;
    let mut go_on_until = |what: &str, advised: Replacement, holds: &dyn Fn() -> bool| {
        // The next token is computed only when the request has come. So the text cannot end before a request that comes
        // late.
        let next = || sentinel.events().recv_timeout(Duration::from_secs(60)).expect(what);
        while next().advises(0.05).as_ref() != Some(&advised) {}
        text.extend(stream.next().map(Result::unwrap));
        assert!(holds(), "not {what} before the next token");
    };
    // Another program takes all of the free memory. It also takes a part of the memory that the model would need again.
    gpu.set_taken(mib(61));
    go_on_until("placed on less", Replacement::Replan, &|| layers() < 7);
    gpu.set_taken(0);
    go_on_until("placed on all again", Replacement::Better { min_gain: 0.05 }, &|| layers() == 7);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn an_idle_model_is_re_placed_at_once() {
    own_process!();
    let gpu = card(mib(64));
    let model = loaded();
    let story = model.generate(PROMPT).temp(0.0).max_tokens(16);
    let expected = story.clone().text().unwrap();
    let _sentinel = sentinel(&model);
    // Then there is no room for any layer. The model is only on the host, and the sentinel still watches whether there
    // is room on the GPU.
    gpu.set_taken(mib(64));
    wait("is on the host", || model.placement().n_gpu_layers == 0);
    // A request that comes during the re-placement waits until the re-placement has ended.
    assert_eq!(story.clone().text().unwrap(), expected);
    assert_eq!(gpu.used(), 0);
    gpu.set_taken(0);
    wait("is on the GPU again", || model.placement().full_offload);
    assert_eq!(story.clone().text().unwrap(), expected);
}
