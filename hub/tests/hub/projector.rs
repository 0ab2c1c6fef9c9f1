//! For a model, a projector is chosen by its header, and fetched into the folder of the model.

use std::ops::ControlFlow::Continue;

use autoplace_hub::{Error, Hub, PlannedFile, Preference, ProjectorChoice, choose_projector};
use autoplace_planner::gguf::{Builder, Header, TensorType as T};
use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::Request;

use crate::world::World;
use test_support::hub_server::Content;
use test_support::synthetic::mmproj;
use test_support::synthetic::shapes::{LLAMA_8B, Shape, TINY};

/// LLaVA's encoder, and 12 billion more weights of this type. With F16 the file has 23 GiB, and with Q8_0 13 GiB.
fn projector(label: &str, kind: T) -> PlannedFile {
    let more = |file: Builder, il: u32| file.tensor(&format!("more.{il}.weight"), kind, &[4096, 25_000]);
    let file = (0..120).fold(mmproj::named("LLaVA 1.5"), more);
    PlannedFile::new(label, None, header(&file))
}

fn header(file: &Builder) -> Header {
    let (bytes, file_bytes) = file.encoded().unwrap();
    Header::parse_shards([(bytes.into(), file_bytes)]).unwrap()
}

fn model(kind: T) -> Header {
    header(&Shape { types: (kind, kind, kind), ..LLAMA_8B }.builder())
}

fn host(free: u64) -> Machine {
    Machine::new(Host::new(free).bandwidth(50_000_000_000))
}

fn chosen(files: &[PlannedFile], model: &Header, machine: &Machine) -> (Option<String>, String) {
    let ProjectorChoice { chosen, reason, .. } = choose_projector(files, model, machine, &Request::new());
    (chosen.map(|chosen| files[chosen].label.clone()), reason)
}

#[test]
fn f16_is_chosen_if_it_fits_q8_0_otherwise_and_f32_last() {
    let files = [projector("F32", T::F32), projector("F16", T::F16), projector("Q8_0", T::Q8_0)];
    let model = model(T::Q8_0);
    let of = |free| chosen(&files, &model, &host(gib(free)));
    let (all, reason) = of(200);
    assert_eq!(all.as_deref(), Some("F16"), "{reason}");
    assert!(
        reason.starts_with("F16 is the projector, of 3 that go with the model: 16.") && reason.ends_with("on the host"),
        "{reason}"
    );
    // The model needs about 9 GiB with the shortest context. F16 and Q8_0 need 32 and 21 GiB: weights of 23 and 13, and
    // 8 for an image.
    let (small, reason) = of(34);
    assert_eq!(small.as_deref(), Some("Q8_0"), "{reason}");
    assert_eq!(chosen(&files[..1], &model, &host(gib(200))).0.as_deref(), Some("F32"));
    let (none, reason) = of(12);
    assert!(none.is_none() && reason.starts_with("none of 3 projectors can be loaded; F32: "), "{reason}");
}

#[test]
fn the_reason_says_where_the_projector_is() {
    let machine = host(gib(100)).with_gpu(Gpu::named("RTX 6000 Ada").unwrap().free(gib(44)));
    let (file, reason) = chosen(&[projector("Q8_0", T::Q8_0)], &model(T::Q4_0), &machine);
    assert!(file.is_some() && reason.contains(" bits, on "), "{reason}");
}

#[test]
fn a_projector_for_another_model_is_not_chosen_and_the_reason_is_given() {
    let other = PlannedFile::new("other", None, header(&mmproj::named("Small LLaVA")));
    let no_projector = PlannedFile::new("text", None, model(T::Q4_0));
    let (none, reason) = chosen(&[other, no_projector], &model(T::Q4_0), &host(gib(64)));
    assert!(none.is_none() && reason.contains("none of 2 projectors can be loaded; other: "), "{reason}");
    assert!(reason.contains("256") && reason.contains("4096"), "{reason}");
}

/// A repository that has a model and three projectors. One of these belongs to another model.
fn world() -> World {
    let large = |file: Builder| Content::large(file.to_bytes().unwrap());
    World::new([
        ("thing-Q8_0.gguf", large(Shape { n_embd: 256, head_dim: 64, ..TINY }.builder())),
        ("mmproj-F16.gguf", large(mmproj::named("Small LLaVA"))),
        ("mmproj-F32.gguf", large(mmproj::named("Small LLaVA").tensor("more.weight", T::F32, &[256, 4096]))),
        (
            "mmproj-other-F16.gguf",
            Content::hollow(
                mmproj::named("LLaVA 1.5").encoded().unwrap().0,
                mmproj::named("LLaVA 1.5").encoded().unwrap().1,
            ),
        ),
    ])
}

#[test]
fn the_projector_of_a_repository_is_fetched_into_the_models_folder() {
    let world = World::new([
        ("thing-Q8_0.gguf", Content::large(Shape { n_embd: 256, head_dim: 64, ..TINY }.builder().to_bytes().unwrap())),
        ("mmproj-F16.gguf", Content::large(mmproj::named("Small LLaVA").to_bytes().unwrap())),
        ("mmproj-BF32.gguf", Content::large(b"<html>".repeat(100))),
    ]);
    let (hub, machine) = (world.hub(), host(gib(8)));
    let name = "hf:some/thing:Q8_0".parse().unwrap();
    let pick = hub.pick(&name, &machine, &Request::new(), Preference::Auto).unwrap();
    assert_eq!(pick.projectors.len(), 2);
    let header = pick.header.clone().unwrap();
    let projector = hub.pick_projector(&pick.projectors, &header, &machine, &Request::new()).unwrap();
    assert_eq!((projector.candidate.name(), &projector.cached), ("mmproj-F16", &None));
    let model = hub.fetch(pick.chosen().unwrap(), |_, _| Continue(())).unwrap();
    // The model is in the cache, but no projector is. The hub lists the projectors.
    let cached = hub.pick(&name, &machine, &Request::new(), Preference::Auto).unwrap();
    assert!(cached.cached.is_some() && cached.projectors.is_empty());
    let listed = hub.projectors(&name.without_quant()).unwrap();
    assert_eq!(listed.len(), 2);
    let path = hub.fetch(&projector.candidate, |_, _| Continue(())).unwrap();
    assert_eq!((path.parent(), path.file_name().unwrap().to_str()), (model.parent(), Some("mmproj-F16.gguf")));

    world.server.seen();
    let cached = hub.pick(&name, &machine, &Request::new(), Preference::Auto).unwrap();
    let again = hub.pick_projector(&cached.projectors, &header, &machine, &Request::new()).unwrap();
    assert_eq!((again.cached, hub.projectors(&name.without_quant()).unwrap().len()), (Some(path), 1));
    assert!(world.server.seen().is_empty());
}

#[test]
fn a_name_with_a_quantisation_lists_the_projectors_of_that_quantisation() {
    let world = world();
    let projectors = |name: &str| world.hub().projectors(&name.parse().unwrap());
    let names = |name: &str| -> Vec<String> {
        projectors(name).unwrap().iter().map(|projector| projector.name().to_owned()).collect()
    };
    assert_eq!(names("hf:some/thing").len(), 3);
    assert_eq!(names("hf:some/thing:f32"), ["mmproj-F32"]);
    assert_eq!(names("hf:some/thing:F16"), ["mmproj-F16", "mmproj-other-F16"]);
    let error = projectors("hf:some/thing:Q2_K").unwrap_err();
    assert!(matches!(error, Error::NoModel { .. }));
    assert!(error.to_string().starts_with("some/thing has no projector of Q2_K; it has mmproj-F16, "), "{error}");
    let offline = world.hub().offline(true).projectors(&"hf:some/thing".parse().unwrap()).unwrap_err();
    assert!(matches!(offline, Error::Offline { .. }), "{offline}");
    let none = World::new([("thing-Q8_0.gguf", Content::large(TINY.builder().to_bytes().unwrap()))]);
    let error = none.hub().projectors(&"hf:some/thing".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "some/thing has no projector (mmproj); it has none");
}

#[test]
fn a_hub_is_asked_once_for_the_projector_of_a_cached_model_that_has_none() {
    let world = World::new([("thing-Q8_0.gguf", Content::large(TINY.builder().to_bytes().unwrap()))]);
    let (hub, name) = (world.hub(), "hf:some/thing".parse().unwrap());
    let none = |hub: &Hub| hub.projectors_beside(&name).unwrap_err().to_string();
    // Until the model is fetched, nothing is stored about projectors.
    assert_eq!(none(&hub), "some/thing has no projector (mmproj); it has none");
    let pick = hub.pick(&name, &host(gib(8)), &Request::new(), Preference::Auto).unwrap();
    hub.fetch(pick.chosen().unwrap(), |_, _| Continue(())).unwrap();
    world.server.seen();
    assert_eq!(none(&hub), "some/thing has no projector (mmproj); it has none");
    assert_eq!(world.server.seen().len(), 1);
    for hub in [&hub, &world.hub(), &world.hub().offline(true)] {
        assert_eq!(none(hub), "some/thing has no projector (mmproj); it has none");
    }
    assert!(world.server.seen().is_empty());
    // A projector may have been added to the repository since. Whoever asks for one by name reaches the hub.
    assert!(hub.projectors(&name).is_err());
    assert_eq!(world.server.seen().len(), 1);
    // The model is still found, both with the hub and without it.
    assert!(hub.pick(&name, &host(gib(8)), &Request::new(), Preference::Auto).unwrap().cached.is_some());
}
