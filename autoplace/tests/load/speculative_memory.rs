//! How much memory drafting needs: in the cache of a window, and on cards. The models are small and have random
//! weights.

use crate::sim_support::card;
use crate::speculative_support::{builder, exact, request};
use crate::text_support::{complete, words};
use autoplace::ModelBuilder;
use autoplace::generate::Speculation;
use autoplace::machine::mib;
use autoplace::memory::{Headroom, KvType};
use autoplace::plan::Policy;

#[test]
fn a_window_that_has_moved_on_goes_back_with_the_text() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact("olmo2", folder.path());
    for swa_full in [true, false] {
        let mut request = request(1024, 2, 8).n_batch(64).n_ubatch(32);
        request.params.swa_full = swa_full;
        let model = builder(&path, request).draft(&path).load().unwrap();
        for length in [20, 250, 420] {
            let generate = |seed| model.generate(words(7, length)).seed(seed).temp(0.8).max_tokens(80);
            // Looks for a text that does not end soon.
            let texts = (0..).map(|seed| (seed, complete(generate(seed), &model)));
            let (seed, plain) = { texts }.find(|(_, text)| text.tokens.len() > 40).unwrap();
            let greedy = complete(generate(seed).temp(0.0), &model);
            // The drafts consist of the likeliest tokens, and random sampling seldom chooses these.
            for (temp, expected) in [(0.8, plain), (0.0, greedy)] {
                let drafts = Speculation::DraftModel { draft_max: 8, p_min: 0.0 };
                let drafted = complete(generate(seed).temp(temp).speculate(drafts), &model);
                assert_eq!(drafted, expected, "{swa_full}, {length} tokens, {temp}");
                let statistics = drafted.statistics();
                let accepted = statistics.accepted_tokens;
                assert!(if temp > 0.0 { accepted < statistics.drafted_tokens } else { accepted > 0 }, "{statistics:?}");
            }
        }
    }
}

#[test]
fn a_draft_goes_to_a_card_that_holds_nothing_of_the_model() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact("llama", folder.path());
    // The policy counts layers, and not speed, because so small a model is as fast on some hosts as on a card.
    let request = request(512, 1, 5).headroom(Headroom::Bytes(256 << 10)).policy(Policy::MostLayers);
    let with_draft = || builder(&path, request.clone()).draft(&path);
    let roomy = card(mib(256));
    let planned = with_draft().plan().unwrap().gpus().next().unwrap().clone();
    drop(roomy);
    // The model fills one of the cards. The draft model and its pools fill the other.
    let cards = [planned.footprint.total(), planned.companions].map(|bytes| card(bytes + planned.headroom.total()));
    let model = with_draft().load().unwrap();
    let plan = model.placement();
    assert!(plan.gpus().count() == 1 && plan.companions[0].device == Some("SIM1".to_owned()), "{plan}");
    assert!(cards.iter().all(|card| (1..=card.total()).contains(&card.peak())), "{plan}");
    // When the draft model was released, there is room on its card again.
    assert_eq!(model.replan().unwrap().companions, plan.companions);
}

#[test]
fn a_draft_is_loaded_as_it_is_stated() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact("llama", folder.path());
    let cards = [(); 2].map(|()| card(mib(256)));
    let request = request(512, 1, 5).headroom(Headroom::Bytes(256 << 10)).policy(Policy::MostLayers);
    let with_draft = || builder(&path, request.clone()).draft(&path);
    let text = |builder: ModelBuilder| {
        let model = builder.load().unwrap();
        let drafts = Speculation::DraftModel { draft_max: 5, p_min: 0.0 };
        let generate = model.generate(words(3, 20)).temp(0.0).max_tokens(40);
        let plain = complete(generate.clone(), &model);
        let drafted = complete(generate.speculate(drafts), &model);
        assert_eq!(drafted, plain);
        assert!(drafted.statistics().accepted_tokens > 0);
        model.placement().companions[0].clone()
    };
    // The request names the card that the plan would not choose for the draft model.
    let own = text(with_draft()).device.unwrap();
    let other = if own == "SIM0" { "SIM1" } else { "SIM0" };
    assert_eq!(text(with_draft().draft_device(other)).device.as_deref(), Some(other));
    let on_host = text(with_draft().draft_device("none"));
    assert_eq!((on_host.device, on_host.bytes.gpu.total()), (None, 0));
    let part = text(with_draft().draft_n_gpu_layers(1).draft_kv_types(KvType::F16, KvType::F32));
    assert!(part.device.is_some() && part.bytes.host.kv > 0, "{part:?}");
    drop(cards);
    let error = with_draft().draft_device("SIM9").load().unwrap_err().to_string();
    assert!(error.contains("`SIM9`, which this machine lacks"), "{error}");
}
