//! Sound: a projector of Whisper's kind with random weights, beside the demo model.

use autoplace::generate::Prompt;
use autoplace::llama_sys::{FlashAttention, MediaPart, Projector, ProjectorParams};
use autoplace::{Part, Sound, chat::ChatTemplate};

use crate::eyes::{builder, projector, their_tokens};
use crate::text_support::{Raw, complete, greedy, request};

fn tone(rate: u32, samples: u32) -> Sound {
    let sample = |at: u32| ((at as f32) * 440.0 * std::f32::consts::TAU / rate as f32).sin() * 0.5;
    Sound::from_samples(rate, (0..samples).map(sample).collect()).unwrap()
}

#[test]
fn a_sound_is_resampled_and_the_text_about_it_is_llama_cpps() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Ultravox", folder.path());
    let model = builder(&path, request(1024, 1, false)).load().unwrap();
    let sound = tone(16_000, 16_000);
    let prompt = |sound: &Sound| Prompt::text("In the beginning").then_media(sound.clone()).then_text(" God created");
    let ours = complete(greedy(&model, prompt(&sound)), &model);
    assert!(ours.statistics().media_tokens > 10, "{:?}", ours.statistics());
    assert_eq!(ours.statistics().encoded_media, 1);

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
    let text = |text| MediaPart::Text { text, parse_special: false };
    let parts = [text("In the beginning"), MediaPart::Sound(sound.samples()), text(" God created")];
    let chunks = theirs.tokenize(&parts, true).unwrap();
    let raw = Raw::new(&native, 1024);
    assert_eq!(ours.tokens, their_tokens(raw, &mut theirs, &chunks, 24));

    // The same tone at another rate is another sound, of as many rows.
    let other = complete(greedy(&model, prompt(&tone(48_000, 48_000))), &model).statistics();
    assert_eq!((other.media_tokens, other.encoded_media), (ours.statistics().media_tokens, 1));
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
