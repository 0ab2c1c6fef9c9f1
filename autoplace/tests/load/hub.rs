//! The way from a name on a hub to a loaded model. The file is chosen for the machine of the load, and it is fetched
//! only if that is allowed.

#[cfg(feature = "hub")]
mod named {
    use std::fs;
    use std::ops::ControlFlow::{Break, Continue};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use autoplace::hub::{self, Hub, Preference};
    use autoplace::load::Error;
    use autoplace::machine::{Host, Machine, gib};
    use autoplace::plan::GpuLayers;
    use autoplace::{Isolation, Model, ModelBuilder};
    use tempfile::TempDir;

    use crate::native_support::load_demo;
    use crate::{sim_support, text_support};
    use test_support::demo_path;
    use test_support::hub_server::{Content, Server};

    const NAME: &str = "hf:some/thing";

    /// A hub with the demo model, and an empty cache.
    fn world() -> (Server, TempDir) {
        let model = Content::large(fs::read(demo_path()).unwrap());
        let projector = Content::large(vec![0; 64]);
        let files = [("demo-Q8_0.gguf", model), ("mmproj-F16.gguf", projector)];
        (Server::new(files), tempfile::tempdir().unwrap())
    }

    fn builder((server, cache): &(Server, TempDir)) -> ModelBuilder {
        let hub = Hub::new(server.endpoint(), cache.path()).patience(Duration::from_secs(20), 2, Duration::ZERO);
        Model::builder(NAME).n_threads(1).hub(hub)
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_such_a_name_is_that_file() {
        own_process!();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("hf:some")).unwrap();
        fs::copy(demo_path(), folder.path().join(NAME)).unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        Model::builder(NAME).n_threads(1).load().unwrap();
    }

    #[test]
    fn a_model_is_fetched_only_where_that_is_said_and_then_loads_without_the_hub() {
        let world = world();
        let (server, cache) = &world;
        let bytes = fs::metadata(demo_path()).unwrap().len();
        for error in [builder(&world).load().unwrap_err(), builder(&world).plan().unwrap_err()] {
            assert!(
                error.to_string().contains("demo-Q8_0.gguf") && error.to_string().contains("fetch(true)"),
                "{error}"
            );
            assert!(matches!(error, Error::NotFetched { bytes: found, .. } if found == bytes), "{error}");
        }
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);

        server.slow(Duration::from_millis(5));
        let ended = builder(&world).fetch(true).fetch_progress(|_, _| Break(())).load().unwrap_err();
        assert!(matches!(ended, Error::Hub(hub::Error::Cancelled { .. })), "{ended}");
        assert!(autoplace::Error::from(ended).is_aborted());
        server.slow(Duration::ZERO);

        let reports = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&reports);
        let builder_with = builder(&world).fetch(true).fetch_progress(move |done, total| {
            sink.lock().unwrap().push((done, total));
            Continue(())
        });
        let text = |model: &Model| model.generate("And the").temp(0.0).max_tokens(8).text().unwrap();
        let model = builder_with.load().unwrap();
        assert_eq!(text(&model), text(&load_demo()));
        let reports = reports.lock().unwrap();
        assert!(
            reports.is_sorted() && reports.iter().all(|report| report.1 == bytes) && !reports.is_empty(),
            "{reports:?}"
        );
        let notes = &model.placement().notes;
        assert!(notes[0].starts_with("hf:some/thing: ") && notes[0].contains("demo-Q8_0"), "{notes:?}");
        assert!(notes[1].contains("mmproj-F16.gguf"), "{notes:?}");

        server.seen();
        let again = builder(&world).isolation(Isolation::Process(text_support::worker())).load().unwrap();
        assert_eq!((text(&again), &again.placement().notes[0][..13]), (text(&model), NAME));
        assert!(server.seen().is_empty());
    }

    #[test]
    fn the_file_is_chosen_for_the_machine_and_the_request_of_the_load() {
        own_process!();
        let world = world();
        let _card = sim_support::card(gib(2));
        let fits = || builder(&world).fetch(true).preference(Preference::FitsWholly);
        assert!(fits().plan().unwrap().full_offload);
        // There is no simulated card in a worker.
        let worker = Isolation::Process(text_support::worker());
        let host = Machine::new(Host::new(gib(8)));
        for without in [fits().n_gpu_layers(GpuLayers::Exactly(0)), fits().machine(host), fits().isolation(worker)] {
            let error = without.load().unwrap_err();
            assert!(matches!(error, Error::Hub(hub::Error::Unmet { .. })), "{error:?}");
        }
    }

    #[cfg(feature = "media")]
    #[test]
    fn a_projector_by_a_hubs_name_is_the_one_that_goes_with_the_model() {
        use test_support::synthetic::mmproj;

        let large = |name: &str| Content::large(mmproj::named(name).to_bytes().unwrap());
        // The second projector has a width that does not fit the model.
        let other = mmproj::named("LLaVA 1.5").encoded().unwrap();
        let files =
            [("mmproj-F16.gguf", large("Small LLaVA")), ("mmproj-other.gguf", Content::hollow(other.0, other.1))];
        let world = (Server::new(files), tempfile::tempdir().unwrap());
        let beside = |path: &std::path::Path| {
            let hub = Hub::new(world.0.endpoint(), world.1.path()).patience(Duration::from_secs(20), 2, Duration::ZERO);
            Model::builder(path).n_threads(1).hub(hub).mmproj(NAME)
        };
        let error = beside(&demo_path()).plan().unwrap_err();
        assert!(matches!(&error, Error::NotFetched { file, .. } if file == "mmproj-F16.gguf"), "{error}");
        let plan = beside(&demo_path()).fetch(true).plan().unwrap();
        assert_eq!(plan.companions.len(), 1, "{plan}");
        let is_said = |note: &String| note.starts_with("hf:some/thing: mmproj-F16 is the projector");
        assert!(plan.notes.iter().any(is_said), "{:?}", plan.notes);
        world.0.seen();
        beside(&demo_path()).plan().unwrap();
        assert!(world.0.seen().is_empty());
    }

    #[test]
    fn what_no_hub_can_have_is_its_error() {
        let world = world();
        let load = |name: &str, offline| {
            let hub = Hub::new(world.0.endpoint(), world.1.path()).offline(offline);
            Model::builder(name).hub(hub).fetch(true).load().unwrap_err()
        };
        assert!(matches!(load("hf:nothing", false), Error::Hub(hub::Error::Name(_))));
        assert!(matches!(load("hf:some/thing:Q2_K", false), Error::Hub(hub::Error::NoModel { .. })));
        assert!(matches!(load(NAME, true), Error::Hub(hub::Error::Offline { .. })));
    }
}

#[test]
#[cfg(not(feature = "hub"))]
fn a_name_without_the_feature_is_an_error_that_names_it() {
    let error = autoplace::Model::load("hf:some/thing").unwrap_err();
    assert!(matches!(error, autoplace::load::Error::NoHub { .. }) && error.to_string().contains("feature `hub`"));
}
