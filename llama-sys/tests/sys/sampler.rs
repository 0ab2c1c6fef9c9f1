//! Each sampler changes a few candidates, as the paper about it says. The tests compute the expected values themselves.

use crate::support::{cpu, cpu_context, demo_model, demo_path, refused};
use llama_sys::{Batch, Candidate, Candidates, ContextParams, Error, Model, Sampler, SamplerChain, Token};

const PROBABILITIES: [f32; 5] = [0.5, 0.25, 0.15, 0.07, 0.03];

fn chain() -> SamplerChain {
    Sampler::chain(&demo_model()).unwrap()
}

/// Candidates for the tokens 0, 1, 2, ..., with these logits.
fn candidates(logits: &[f32]) -> Candidates {
    let mut all = vec![0.0; demo_model().vocab().n_tokens() as usize];
    all[..logits.len()].copy_from_slice(logits);
    let mut candidates = Candidates::default();
    candidates.set(&all, None);
    candidates.retain(|candidate| (candidate.token() as usize) < logits.len());
    candidates
}

/// Candidates with these probabilities.
fn likely(probabilities: &[f32]) -> Candidates {
    let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() + 3.0).collect();
    candidates(&logits)
}

/// The logits, in the order of the tokens, after a chain was applied to `candidates`. Before that, the chain accepts
/// the tokens in `came`. Minus infinity stands for a token that was dropped.
fn made(chain: Result<SamplerChain, Error>, came: &[Token], mut candidates: Candidates) -> Vec<f32> {
    let mut sampler = chain.unwrap().greedy().unwrap();
    came.iter().for_each(|&token| sampler.accept(token).unwrap());
    let mut made = vec![f32::NEG_INFINITY; candidates.len()];
    sampler.apply(&mut candidates).unwrap();
    candidates.iter().for_each(|candidate| made[candidate.token() as usize] = candidate.logit());
    made
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (a, b) in found.iter().zip(expected) {
        let is_close = a == b || (a - b).abs() < 1e-4 * b.abs().max(1.0);
        assert!(is_close, "{found:?} {expected:?}");
    }
}

#[test]
fn filters_keep_likely_tokens_and_the_minimum_number() {
    let (all, five) = ([0, 1, 2, 3, 4], || likely(&PROBABILITIES));
    // The entropy is 0.5 ln 2 + 0.3 ln 10/3 + 0.2 ln 5 = 1.03 nats, and the surprises are 0.69, 1.20, 1.61. So the
    // second token is the most typical one, and then the first.
    let three = || likely(&[0.5, 0.3, 0.2]);
    // The mean is 1, and the standard deviation is sqrt(5).
    let four = || candidates(&[4.0, 2.0, 0.0, -2.0]);
    for (chain, candidates, kept) in [
        (chain().top_k(0), five(), &all[..]),
        (chain().top_k(2), five(), &all[..2]),
        // 0.5 + 0.25 is not enough. With 0.15 more it is.
        (chain().top_p(0.8), five(), &all[..3]),
        (chain().top_p(1.0), five(), &all),
        // The limit is 0.2 * 0.5 = 0.1.
        (chain().min_p(0.2), five(), &all[..3]),
        (chain().min_p(0.0), five(), &all),
        (chain().typical(0.2), three(), &all[1..2]),
        (chain().typical(0.6), three(), &all[..2]),
        (chain().typical(0.9), three(), &all[..3]),
        (chain().top_n_sigma(0.5), four(), &all[..1]),
        (chain().top_n_sigma(1.0), four(), &all[..2]),
        (chain().top_n_sigma(2.0), four(), &all[..3]),
        (chain().top_n_sigma(-1.0), four(), &all[..4]),
        (chain().xtc(1.0, 0.1, 1), five(), &all[2..]),
        (chain().xtc(1.0, 0.2, 1), five(), &all[1..]),
        // In the first case, only one token is above the threshold, so none is dropped. The second case would leave too
        // few tokens.
        (chain().xtc(1.0, 0.3, 1), five(), &all),
        (chain().min_keep(4).xtc(1.0, 0.1, 1), five(), &all),
        (chain().xtc(0.0, 0.1, 1), five(), &all),
        (chain().xtc(1.0, 0.6, 1), five(), &all),
        (chain().min_keep(4).top_p(0.1), five(), &all[..4]),
        (chain().min_keep(3).min_p(1.0), five(), &all[..3]),
        (chain().min_keep(2).typical(0.01), five(), &all[..2]),
        (chain().min_keep(9).top_p(0.1), five(), &all),
        // `min_keep` has no effect on filters that were added before it.
        (chain().top_p(0.1).map(|chain| chain.min_keep(4)), five(), &all[..1]),
    ] {
        let names = format!("{chain:?} of {kept:?}");
        let left = (0..).zip(made(chain, &[], candidates)).filter(|(_, logit)| logit.is_finite());
        assert_eq!(left.map(|candidate| candidate.0).collect::<Vec<Token>>(), kept, "{names}");
    }
}

#[test]
fn temperatures_penalties_and_biases_change_logits() {
    let three = [3.0f32, 1.0, -2.0];
    let sum: f32 = three.iter().map(|logit| logit.exp()).sum();
    let entropy: f32 = three.iter().map(|logit| logit.exp() / sum).map(|p| -p * p.ln()).sum();
    let share = (entropy / 3.0f32.ln()).powf(1.5);
    let by = |temperature: f32| three.map(|logit| logit / temperature);
    let newline = *demo_model().vocab().tokenize("\n", false, false).unwrap().last().unwrap();
    let dry = || chain().dry(0.8, 2.0, 2, 64, &["\n"]);
    const NONE: f32 = f32::NEG_INFINITY;
    for (chain, came, logits, expected) in [
        (chain().temperature(2.0), &[][..], &three[..], &[1.5, 0.5, -1.0][..]),
        (chain().temperature(0.0), &[], &three, &[3.0, NONE, NONE]),
        (chain().dynamic_temperature(2.0, 0.0, 1.0), &[], &three, &[1.5, 0.5, -1.0]),
        (chain().dynamic_temperature(1.0, 0.5, 1.5), &[], &three, &by(0.5 + (1.5 - 0.5) * share)),
        // The temperature goes up to 3. It begins at 0.001, because -1 would be too low.
        (chain().dynamic_temperature(1.0, 2.0, 1.5), &[], &three, &by(0.001 + (3.0 - 0.001) * share)),
        // Token 0 has come once, and token 1 twice (its logit is below 0). Token 3 came too long ago.
        (
            chain().penalties(3, 2.0, 0.25, 0.5),
            &[3, 0, 1, 1],
            &[3.0, -1.0, 0.5, 2.0],
            &[3.0 / 2.0 - 0.75, -2.0 - 0.5 - 0.5, 0.5, 2.0],
        ),
        // "1 2 3" has come before, and 4 has followed it: 0.8 * 2^(3 - 2).
        (dry(), &[1, 2, 3, 4, 0, 1, 2, 3], &[0.0; 5], &[0.0, 0.0, 0.0, 0.0, -1.6]),
        // A repetition of one token is allowed.
        (dry(), &[3, 4, 0, 3], &[0.0; 5], &[0.0; 5]),
        // Two of the three tokens come before the end of the line, so only one counts.
        (dry(), &[1, 2, 3, 4, 0, 1, 2, newline, 3], &[0.0; 5], &[0.0; 5]),
        (chain().logit_bias(&[(1, 2.5), (0, NONE)]), &[], &[9.0, 0.0, 1.0], &[NONE, 2.5, 1.0]),
    ] {
        assert_close(&made(chain, came, candidates(logits)), expected);
    }
}

#[test]
fn a_dynamic_temperature_without_entropy_takes_the_likeliest() {
    // One token is so likely that the entropy, raised to this power, underflows.
    let chain = chain().dynamic_temperature(1.0, 1.0, 12.0).unwrap();
    let mut sampler = chain.dist(3).unwrap();
    let mut sure = candidates(&[30.0, 19.0, 15.0, 9.0]);
    assert_eq!(sampler.apply(&mut sure).unwrap(), 0);
}

#[test]
fn mirostat_v2_drops_surprising_tokens_and_learns() {
    // The first bound is a surprise of 2 tau = 3 bits. Surprises of 1, 2 and 2.7 bits are within it; 3.8 and 5.1 bits
    // are not.
    let (tau, eta) = (1.5, 0.3);
    let mut sampler = chain().mirostat_v2(tau, eta, 4).unwrap();
    let mut bound = 2.0 * tau;
    for _ in 0..200 {
        let mut five = likely(&PROBABILITIES);
        sampler.apply(&mut five).unwrap();
        let within = PROBABILITIES.iter().filter(|p| -p.log2() <= bound).count();
        assert_eq!(five.len(), within.max(1));
        let kept: f32 = PROBABILITIES[..five.len()].iter().sum();
        let chosen = PROBABILITIES[five.selected().unwrap().token() as usize] / kept;
        bound -= eta * (-chosen.log2() - tau);
    }
}

#[test]
fn mirostat_keeps_the_surprise_near_its_target() {
    // The probabilities follow Zipf's law, which Mirostat assumes. The exponent is not 1, because Mirostat's estimate
    // would be 0 / 0.
    let weights: Vec<f32> = (1..=800).map(|rank| (rank as f32).powf(-1.2)).collect();
    let sum: f32 = weights.iter().sum();
    let probabilities: Vec<f32> = weights.iter().map(|weight| weight / sum).collect();
    for tau in [2.0, 4.0] {
        let mut sampler = chain().mirostat(tau, 0.1, 100, 9).unwrap();
        let surprises: f32 = (0..600)
            .map(|_| {
                let mut all = likely(&probabilities);
                sampler.apply(&mut all).unwrap();
                -all.selected().unwrap().probability().log2()
            })
            .skip(100)
            .sum();
        let mean = surprises / 500.0;
        assert!((mean - tau).abs() < 0.3, "{mean} bits instead of {tau}");
    }
}

#[test]
fn adaptive_p_prefers_a_probability_and_remembers_its_choices() {
    let (target, decay) = (0.25f32, 0.5f32);
    let mut sampler = chain().adaptive_p(target, decay, 3).unwrap();
    let (mut sum, mut weight) = (target / (1.0 - decay), 1.0 / (1.0 - decay));
    for _ in 0..50 {
        let aim = (2.0 * target - sum / weight).clamp(0.0, 1.0);
        let expected = PROBABILITIES.map(|p| {
            let distance = ((p - aim) / 0.3).abs();
            5.0 - 10.0 * distance * distance / (1.0 + distance)
        });
        let mut five = likely(&PROBABILITIES);
        let token = sampler.apply(&mut five).unwrap();
        let made: Vec<f32> = five.iter().map(Candidate::logit).collect();
        assert_close(&made, &expected);
        sampler.accept(token).unwrap();
        sum = PROBABILITIES[token as usize] + decay * sum;
        weight = 1.0 + decay * weight;
    }
}

#[test]
fn a_choice_by_chance_comes_as_often_as_it_is_likely() {
    // With 4,000 draws, the standard deviation of a share is less than 0.008. The test allows a difference of five
    // standard deviations.
    let often = |chain: Result<SamplerChain, Error>| {
        let mut sampler = chain.unwrap().dist(5).unwrap();
        let mut counts = [0.0; PROBABILITIES.len()];
        for _ in 0..4000 {
            counts[sampler.apply(&mut likely(&PROBABILITIES)).unwrap() as usize] += 1.0 / 4000.0;
        }
        counts
    };
    let close = |found: [f64; 5], expected: [f64; 5]| {
        assert!(found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 0.04), "{found:?} {expected:?}");
    };
    let likely = PROBABILITIES.map(f64::from);
    close(often(Ok(chain())), likely);
    // In three of ten draws, XTC drops the first token. The others are then chosen according to their shares.
    let without_first = |n: usize| if n == 0 { 0.0 } else { likely[n] / 0.5 };
    let mixed: [f64; 5] = std::array::from_fn(|n| 0.7 * likely[n] + 0.3 * without_first(n));
    close(often(chain().xtc(0.3, 0.2, 4)), mixed);
}

#[test]
fn a_chain_that_depends_on_logits_says_so_and_skips_nothing() {
    let cooled = chain().top_k(3).unwrap().temperature(0.5);
    for (sampler, depends) in [
        (chain().greedy(), false),
        (chain().xtc(0.0, 0.1, 1).unwrap().dist(1), false),
        (cooled.unwrap().dist(1), false),
        (chain().xtc(0.5, 0.1, 1).unwrap().dist(1), true),
        (chain().mirostat(5.0, 0.1, 100, 1), true),
        (chain().mirostat_v2(5.0, 0.1, 1), true),
        (chain().adaptive_p(0.3, 0.9, 1), true),
    ] {
        let mut sampler = sampler.unwrap();
        assert_eq!(sampler.depends_on_logits(), depends, "{sampler:?}");
        sampler.skip(0).unwrap();
        let skipped = sampler.skip(2);
        if depends { assert_eq!(refused(skipped), "skip") } else { skipped.unwrap() }
    }
}

#[test]
fn candidates_can_be_dropped_and_changed() {
    let mut five = likely(&PROBABILITIES);
    five.softmax();
    for (candidate, p) in five.iter().zip(PROBABILITIES) {
        assert!((candidate.probability() - p).abs() < 1e-6);
    }
    let mut sampler = chain().greedy().unwrap();
    assert_eq!(sampler.apply(&mut five).unwrap(), 0);
    five.retain(|candidate| candidate.token() % 2 == 0);
    assert_eq!(five.selected().unwrap().token(), 0);
    assert!(five.len() == 3 && five.contains(4) && !five.contains(1));
    five.retain(|candidate| candidate.token() != 0);
    assert!(five.selected().is_none());
    five.map_logits(|token, logit| if token == 4 { 7.0 } else { logit });
    assert_eq!(sampler.apply(&mut five).unwrap(), 4);
    // A token whose logit is NaN is never chosen.
    five.map_logits(|token, logit| if token == 4 { f32::NAN } else { logit });
    assert_eq!(sampler.apply(&mut five).unwrap(), 2);
    five.map_logits(|_, _| f32::INFINITY);
    five.softmax();
    assert!(five.iter().all(|candidate| candidate.probability() == 0.5));
    five.retain(|_| false);
    five.softmax();
    assert!(five.is_empty() && five.selected().is_none());
}

#[test]
fn nothing_to_choose_from_is_an_error() {
    let n_tokens = demo_model().vocab().n_tokens();
    let mut sampler = chain().greedy().unwrap();
    let mut none = likely(&[0.5]);
    none.retain(|_| false);
    let chosen = sampler.apply(&mut none);
    assert_matches!(chosen, Err(Error::NoCandidates { n_tokens: n }) if *n == n_tokens);
    let mut foreign = Candidates::default();
    foreign.set(&[1.0, 2.0], None);
    assert_eq!(refused(sampler.apply(&mut foreign)), "candidates");
    // A mask that allows no token, for a token that was computed.
    let mut context = cpu_context(ContextParams { n_ctx: 64, ..ContextParams::default() });
    let mut batch = Batch::default();
    batch.add(300, 0, 0, true);
    context.decode(&batch).unwrap();
    let nothing = vec![0; n_tokens.div_ceil(32) as usize];
    let masked = none.fill_masked(&mut context, -1, &nothing);
    assert_matches!(masked, Err(Error::NoCandidates { n_tokens: n }) if *n == n_tokens);
}

#[test]
fn a_mask_says_which_tokens_are_candidates() {
    let logits: Vec<f32> = (0..70).map(|token| token as f32).collect();
    let mut some = Candidates::default();
    let mut of = |mask: &[u32]| {
        some.set(&logits, Some(mask));
        some.iter().map(Candidate::token).collect::<Vec<_>>()
    };
    assert_eq!(of(&[1 << 3 | 1 << 31, 1, 1 << 5]), [3, 31, 32, 69]);
    // Masks: one with bits beyond the vocabulary, and others with too few or too many words.
    assert_eq!(of(&[0, 0, 1 << 5 | 1 << 6, u32::MAX]), [69]);
    assert_eq!(of(&[0b101]), [0, 2]);
    assert_eq!(of(&[]), [0; 0]);
    assert_eq!(of(&[u32::MAX; 3]).len(), 70);
}

#[test]
fn only_a_grammar_keeps_the_model_loaded() {
    let model = Model::load(demo_path(), cpu()).unwrap();
    let chain = || Sampler::chain(&model).unwrap();
    let dry = chain().dry(0.8, 1.75, 2, 64, &["\n", ":"]).unwrap();
    let mut sampler = dry.mirostat_v2(5.0, 0.1, 1).unwrap();
    assert_eq!(model.holders(), 1, "{sampler:?}");
    let grammar = chain().grammar("root ::= [0-9]+", "root").unwrap();
    let grammar = grammar.greedy().unwrap();
    assert_eq!(model.holders(), 2, "{grammar:?}");
    drop(grammar);
    let n_tokens = model.vocab().n_tokens() as usize;
    drop(model);
    let mut all = Candidates::default();
    all.set(&vec![0.0; n_tokens], None);
    sampler.accept(5).unwrap();
    sampler.apply(&mut all).unwrap();
}
