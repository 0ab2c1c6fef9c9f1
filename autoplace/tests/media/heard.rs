//! Sound: the demo model, with a projector that is built like Whisper's and has random weights.

use autoplace::generate::Prompt;
use autoplace::llama_sys::{FlashAttention, MediaPart, Projector, ProjectorParams};
use autoplace::plan::GpuLayers;
use autoplace::{Isolation, Part, Sound, chat::ChatTemplate};

use crate::eyes::{builder, projector, their_tokens};
use crate::sim_support::card;
use crate::text_support::{Raw, complete, greedy, request, worker};

pub(crate) fn tone(rate: u32, samples: u32) -> Sound {
    let sample = |at: u32| ((at as f32) * 440.0 * std::f32::consts::TAU / rate as f32).sin() * 0.5;
    Sound::from_samples(rate, (0..samples).map(sample).collect()).unwrap()
}

pub(crate) fn heard(sound: &Sound) -> Prompt {
    Prompt::text("In the beginning").then_media(sound.clone()).then_text(" God created")
}

/// The same prompt for mtmd. The sound must have mtmd's rate.
pub(crate) fn heard_parts(sound: &Sound) -> [MediaPart<'_>; 3] {
    let text = |text| MediaPart::Text { text, parse_special: false };
    [text("In the beginning"), MediaPart::Sound(sound.samples()), text(" God created")]
}

/// Numbers of samples at 16 kHz: for a tenth of a second, for a second, and for more than 30 seconds. At most 30
/// seconds are encoded at once.
const LENGTHS: [u32; 3] = [1_600, 16_000, 16_000 * 31];

#[test]
fn a_sound_is_resampled_and_the_text_about_it_is_llama_cpps() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Ultravox", folder.path());
    let model = builder(&path, request(1024, 1, false)).load().unwrap();
    let native = model.native().unwrap();
    let params = ProjectorParams {
        device: None,
        n_threads: 1,
        flash_attention: FlashAttention::Enabled,
        image_min_tokens: None,
        image_max_tokens: None,
    };
    let mut theirs = Projector::load(&native, &path, &params).unwrap();
    assert_eq!(theirs.sample_rate(), Some(16_000));
    for samples in LENGTHS {
        let sound = tone(16_000, samples);
        let ours = complete(greedy(&model, heard(&sound)), &model);
        assert!(ours.statistics().media_tokens > 10, "{:?}", ours.statistics());
        assert!(ours.statistics().encoded_media >= 1);
        let chunks = theirs.tokenize(&heard_parts(&sound), true).unwrap();
        let raw = Raw::new(&native, 1024);
        assert_eq!(ours.tokens, their_tokens(raw, &mut theirs, &chunks, 24), "{samples} samples");

        // At another rate, the same tone is another sound, but it has the same number of rows.
        let other = complete(greedy(&model, heard(&tone(48_000, samples * 3))), &model).statistics();
        assert_eq!(other.media_tokens, ours.statistics().media_tokens, "{samples} samples");
        assert!(other.encoded_media >= 1);
    }
}

/// Nowhere are the weights rearranged for the CPU: neither on the host, nor on the card, nor in the worker.
#[test]
fn the_text_about_a_sound_on_a_card_and_in_a_worker_is_that_of_the_host() {
    own_process!();
    let _card = card(4 << 30);
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Ultravox", folder.path());
    let on = |layers| {
        let mut request = request(1024, 1, false).n_gpu_layers(GpuLayers::Exactly(layers));
        request.params.repack = false;
        builder(&path, request)
    };
    let host = on(0).load().unwrap();
    let card = on(4).load().unwrap();
    let worker = on(0).isolation(Isolation::Process(worker())).load().unwrap();
    assert!(host.placement().companions[0].gpu.is_none() && card.placement().companions[0].gpu.is_some());
    for samples in LENGTHS {
        let sound = tone(16_000, samples);
        let expected = complete(greedy(&host, heard(&sound)), &host).tokens;
        for model in [&card, &worker] {
            let text = complete(greedy(model, heard(&sound)), model).tokens;
            assert_eq!(text, expected, "{samples} samples: {}", model.placement());
        }
    }
}

#[test]
fn a_chat_hears_and_answers_a_second_question_without_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Ultravox", folder.path());
    let model = builder(&path, request(1024, 1, false)).load().unwrap();
    let chat = model.chat_with(ChatTemplate::family("chatml").unwrap());
    let mut chat = chat.with(|generate| generate.temp(0.0).max_tokens(6));
    let heard = [Part::audio(tone(44_100, 30_000)), Part::text("What is said?")];
    let (_, first) = chat.say(heard).unwrap().finish().unwrap();
    let (_, second) = chat.say("And who says it?").unwrap().finish().unwrap();
    assert_eq!((first.encoded_media, second.encoded_media), (1, 0));
    assert!(second.cached_tokens >= first.prompt_tokens, "{second:?}");
}
