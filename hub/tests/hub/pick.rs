//! Models are picked by name: from the cache first, and then from the hub's listing.

use std::ops::ControlFlow::Continue;

use autoplace_hub::{Error, Pick, Preference};
use autoplace_planner::gguf::TensorType as T;
use autoplace_planner::machine::{Host, Machine, gib};
use autoplace_planner::plan::Request;

use crate::world::World;
use test_support::hub_server::Content;
use test_support::synthetic::shapes::{Shape, TINY};

/// A repository that has two quantisations, of which the smaller one comes first.
fn world() -> World {
    let of = |kind| Content::large(Shape { types: (kind, kind, kind), ..TINY }.builder().to_bytes().unwrap());
    let broken = Content::large(b"<html>".repeat(100));
    let projector = Content::large(vec![0; 64]);
    World::new([
        ("thing-Q8_0.gguf", of(T::Q8_0)),
        ("thing-F32.gguf", of(T::F32)),
        ("thing-Q4_0.gguf", broken),
        ("mmproj-F16.gguf", projector),
    ])
}

impl World {
    fn pick(&self, preference: &str) -> Result<Pick, Error> {
        self.picked(self.hub(), preference.parse().unwrap())
    }

    fn picked(&self, hub: autoplace_hub::Hub, preference: Preference) -> Result<Pick, Error> {
        let machine = Machine::new(Host::new(gib(8)).bandwidth(50_000_000_000));
        hub.pick(&"hf:some/thing".parse().unwrap(), &machine, &Request::new(), preference)
    }
}

#[test]
fn the_hub_is_asked_only_where_the_cache_does_not_meet_the_preference() {
    let world = world();
    let pick = world.pick("fastest").unwrap();
    assert_eq!((pick.chosen().unwrap().quant(), &pick.cached), (Some("Q8_0"), &None));
    let path = world.hub().fetch(pick.chosen().unwrap(), |_, _| Continue(())).unwrap();
    world.server.seen();

    let cached = world.pick("best:0").unwrap();
    assert_eq!((cached.candidates.len(), cached.cached), (1, Some(path)));
    assert!(world.server.seen().is_empty());
    let better = world.pick("fastest:F32").unwrap();
    assert_eq!((better.chosen().unwrap().quant(), &better.cached), (Some("F32"), &None));
    assert!(!world.server.seen().is_empty());

    let offline = world.hub().offline(true);
    let unmet = world.picked(offline, "fastest:F32".parse().unwrap()).unwrap();
    assert!(matches!(unmet.chosen(), Err(Error::Unmet { .. })));
    assert!(world.server.seen().is_empty());
}

#[test]
fn an_unmet_preference_is_an_error_and_each_file_left_out_has_its_reason() {
    let pick = world().pick("best:1000000000").unwrap();
    let error = pick.chosen().unwrap_err();
    assert_eq!(error.to_string(), "hf:some/thing: none reaches 1000000000 tok/s");
    let rows: Vec<&str> = pick.choice.rows.iter().map(|row| &row.label[..]).collect();
    assert_eq!(rows, ["thing-F32", "thing-Q8_0"]);
    assert!(pick.choice.rows.iter().all(|row| row.placed().is_some()));
    let [projector, broken] = &pick.left_out[..] else { panic!("{:?}", pick.left_out) };
    assert!(projector.starts_with("mmproj-F16.gguf: ") && broken.starts_with("thing-Q4_0 is left out: "), "{broken}");
    assert!(broken.contains("not a GGUF file"), "{broken}");
    let (machine, name) = (Machine::new(Host::new(gib(8))), "hf:some/thing:Q4_0".parse().unwrap());
    assert!(matches!(
        world().hub().pick(&name, &machine, &Request::new(), Preference::Auto),
        Err(Error::Header { .. })
    ));
}
