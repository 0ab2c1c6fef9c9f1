//! If the beginning of a prompt is the same as in an earlier prompt, only the rest is computed, and the text does not
//! change. The tests use the public API and the demo model.

use crate::text_support::{PROMPTS, Raw, SYSTEM, complete, demo, greedy, text_and_statistics, to_the_end, tokens_of};
use autoplace::generate::Prompt;
use autoplace::llama_sys::Token;

#[test]
fn cached_tokens_of_a_prompt_are_not_computed_again() {
    let model = demo(1024, 1, false);
    let raw = |prompt: &[Token]| Raw::text(&model, prompt, 24);
    let whole = tokens_of(&model, &PROMPTS.concat());
    let third = whole[..whole.len() / 3].to_vec();
    let parted = [&whole[..whole.len() / 2], &tokens_of(&model, "wine and oil")].concat();
    let turn = [&parted[..], &raw(&parted), &tokens_of(&model, "And he said,")].concat();
    let dropped = tokens_of(&model, SYSTEM);
    let (parts, answer) = (whole.len() / 2, parted.len() + 24 - 1);
    for (case, prompt, held) in [
        ("a beginning", &third, 0),
        ("more of it", &whole, third.len()),
        ("the same again", &whole, whole.len() - 1),
        ("less", &third, third.len() - 1),
        ("the whole", &whole, third.len()),
        ("one that parts from it in the middle", &parted, parts),
        ("the answer to that and more", &turn, answer),
        ("that of a stream that was dropped", &dropped, dropped.len() - 1),
        ("one that is not to be looked for", &dropped, 0),
    ] {
        if case.ends_with("was dropped") {
            greedy(&model, &prompt[..]).stream().unwrap().next().unwrap().unwrap();
        }
        let generate = greedy(&model, &prompt[..]);
        // By default, nothing is reused.
        let generate = if case.ends_with("looked for") { generate } else { generate.cache_prompt(true) };
        let completion = complete(generate, &model);
        assert_eq!(completion.tokens, raw(prompt), "{case}");
        let statistics = completion.statistics();
        assert!(statistics.cached_tokens >= held && statistics.cached_tokens < prompt.len(), "{case}: {statistics:?}");
        assert_eq!((statistics.cached_tokens == 0, statistics.prompt_tokens), (held == 0, prompt.len()), "{case}");
    }
}

#[test]
fn conversations_keep_their_own_caches_while_there_are_sequences() {
    let model = demo(1024, 2, false);
    let mut session = model.session().unwrap();
    // Both prompts have the same beginning. The answers are longer than the shortest prefix for which a copy is made.
    let begun = ["The first song of David, when he", "A psalm of the sons of Korah, for"];
    let mut texts = begun.map(|prompt| format!("{} {prompt}", SYSTEM.repeat(6)));
    for turn in 0..4 {
        for text in &mut texts {
            let generate = greedy(&model, text.as_str()).max_tokens(100).cache_prompt(true);
            session.begin(generate).unwrap();
            let completion = to_the_end(&mut session).remove(0);
            let new = completion.statistics().prompt_tokens - completion.statistics().cached_tokens;
            assert!(turn == 0 || new < 16, "turn {turn}: {completion:?}");
            text.push_str(&completion.text);
            text.push_str(" And then");
        }
    }
}

#[test]
fn control_tokens_in_a_text_are_text_and_in_markup_are_tokens() {
    let model = demo(1024, 1, false);
    let vocab = model.native().unwrap().vocab();
    let bos = vocab.bos().unwrap();
    let written = String::from_utf8(vocab.piece(bos, true).unwrap()).unwrap();
    let count = |prompt: Prompt| text_and_statistics(greedy(&model, prompt).max_tokens(0)).1.prompt_tokens;
    assert_eq!(count(Prompt::markup(written.clone())), 1);
    assert!(count(Prompt::text(written.clone()).add_special(false)) > 1);
    let parts = Prompt::markup(written.clone()).then_text(written).then_tokens([bos]);
    assert!(count(parts) > 3);
}
