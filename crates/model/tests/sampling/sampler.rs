//! The sampler against its definition: each parameter's meaning, the distribution of draws, and what must not matter.

use crate::on_backend::OnBackend;
use proptest::prelude::*;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{RowError, RowResult, RowTask, Sample, SamplingParams, SamplingRow};

/// A row to sample, with nothing special about it.
#[derive(Clone)]
struct Row<'a> {
    params: SamplingParams,
    seed: u64,
    prompt: &'a [u32],
    output: &'a [u32],
    stop: &'a [u32],
    allowed: Option<&'a [u32]>,
    num_logprobs: Option<usize>,
}

impl Default for Row<'_> {
    fn default() -> Self {
        let params = SamplingParams::default();
        Self { params, seed: 0, prompt: &[], output: &[], stop: &[], allowed: None, num_logprobs: None }
    }
}

impl Row<'_> {
    fn at(&self, logit_row: usize) -> SamplingRow<'_> {
        let task = RowTask::Sample {
            params: &self.params,
            seed: self.seed,
            prompt_token_ids: self.prompt,
            output_token_ids: self.output,
            eos_token_ids: self.stop,
            allowed_tokens: self.allowed,
        };
        SamplingRow { logit_row, task, num_logprobs: self.num_logprobs }
    }
}

/// A sampler on the CPU that takes so many rows of requests at a time.
fn sampler(vocab_size: usize, max_num_seqs: usize) -> OnBackend<CpuBackend> {
    OnBackend::new(CpuBackend::new(Some(1)), vocab_size, max_num_seqs)
}

fn sample(logits: &[f32], row: &Row<'_>) -> Sample {
    sample_rows(&mut sampler(logits.len(), 1), logits, &[row.at(0)]).unwrap().remove(0).unwrap()
}

fn sample_rows(
    sampler: &mut OnBackend<CpuBackend>,
    logits: &[f32],
    rows: &[SamplingRow<'_>],
) -> Result<Vec<RowResult>, String> {
    sampler.sample(logits, rows)
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// How often each token is drawn over `n` positions of one request's stream.
fn counts(logits: &[f32], params: &SamplingParams, n: usize) -> Vec<usize> {
    let output = vec![0; n];
    let mut one = sampler(logits.len(), 1);
    let mut counts = vec![0; logits.len()];
    for position in 0..n {
        let row = Row { params: params.clone(), seed: 42, output: &output[..position], ..Row::default() };
        counts[sample_rows(&mut one, logits, &[row.at(0)]).unwrap()[0].as_ref().unwrap().token_id as usize] += 1;
    }
    counts
}

/// Checks draws against probabilities with Pearson's statistic. Seeds are fixed, so the outcome is; the bound is that which a
/// right sampler would exceed once in a million seeds, by the Wilson-Hilferty approximation.
fn check_distribution(logits: &[f32], params: &SamplingParams, probabilities: &[f64]) {
    const DRAWS: usize = 20_000;
    let counts = counts(logits, params, DRAWS);
    let (mut statistic, mut cells) = (0.0, 0);
    for (token, (&count, &p)) in counts.iter().zip(probabilities).enumerate() {
        if p == 0.0 {
            assert_eq!(count, 0, "token {token} is excluded");
            continue;
        }
        let expected = p * DRAWS as f64;
        statistic += (count as f64 - expected).powi(2) / expected;
        cells += 1;
    }
    let freedom = f64::from(cells - 1).max(1.0);
    const ONE_IN_A_MILLION: f64 = 4.753;
    let term = 2.0 / (9.0 * freedom);
    let bound = freedom * (1.0 - term + ONE_IN_A_MILLION * term.sqrt()).powi(3);
    assert!(statistic < bound, "{statistic} of at most {bound}: {counts:?} for {probabilities:?}");
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
    normalise(weights)
}

fn normalise(weights: Vec<f64>) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

const LOGITS: [f32; 8] = [1.0, 3.0, 2.0, -1.0, 2.5, 0.0, 1.5, f32::NEG_INFINITY];

#[test]
fn temperature_draws_from_the_softmax() {
    for temperature in [0.3, 1.0, 2.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        check_distribution(&LOGITS, &params, &softmax(&LOGITS, f64::from(temperature)));
    }
}

#[test]
fn a_row_longer_than_a_part_is_drawn_from_throughout() {
    let logits: Vec<f32> = (0..3000).map(|i| if i % 500 == 499 { 2.0 } else { -200.0 }).collect();
    check_distribution(
        &logits,
        &SamplingParams::default(),
        &softmax(&logits, 1.0).iter().map(|p| if *p < 1e-9 { 0.0 } else { *p }).collect::<Vec<_>>(),
    );
}

#[test]
fn top_k_top_p_and_min_p_exclude_what_they_should() {
    let p = softmax(&LOGITS, 1.0);
    let keep = |kept: &[usize]| normalise((0..8).map(|i| if kept.contains(&i) { p[i] } else { 0.0 }).collect());
    // Probabilities: 1: 0.42, 4: 0.26, 2: 0.16, 6: 0.09, 0: 0.06, 5: 0.02, 3: 0.01.
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    };
    check_distribution(&LOGITS, &with(|p| p.top_k = 1), &keep(&[1]));
    check_distribution(&LOGITS, &with(|p| p.top_k = 3), &keep(&[1, 4, 2]));
    check_distribution(&LOGITS, &with(|p| p.top_k = 100), &keep(&[0, 1, 2, 3, 4, 5, 6]));
    check_distribution(&LOGITS, &with(|p| p.top_p = 0.4), &keep(&[1]));
    check_distribution(&LOGITS, &with(|p| p.top_p = 0.5), &keep(&[1, 4]));
    check_distribution(&LOGITS, &with(|p| p.top_p = 0.8), &keep(&[1, 4, 2]));
    check_distribution(&LOGITS, &with(|p| p.min_p = 0.3), &keep(&[1, 4, 2]));
    // top_p is taken of what top_k left: of 1 and 4, token 1 has 0.62.
    check_distribution(&LOGITS, &with(|p| (p.top_k, p.top_p) = (2, 0.6)), &keep(&[1]));
    // And of what min_p left: of 1, 4 and 2, tokens 1 and 4 have 0.81.
    check_distribution(&LOGITS, &with(|p| (p.min_p, p.top_p) = (0.3, 0.8)), &keep(&[1, 4]));
}

#[test]
fn top_p_of_a_flat_row_keeps_its_share() {
    // Every token is as likely: the smaller ids are kept. More than the first search for a nucleus takes.
    let logits = vec![0.5f32; 6000];
    let params = SamplingParams { top_p: 0.75, ..SamplingParams::default() };
    let counts = counts(&logits, &params, 3000);
    assert!(counts[4500..].iter().all(|&c| c == 0));
    assert!(counts[4000..4500].iter().any(|&c| c > 0));
}

#[test]
fn penalties_follow_their_formulas() {
    let greedy_with = |logits: &[f32], change: fn(&mut SamplingParams), prompt: &[u32], output: &[u32]| {
        let mut params = greedy();
        change(&mut params);
        sample(logits, &Row { params, prompt, output, ..Row::default() }).token_id
    };
    // Divides what is above 0 and multiplies what is below, once for prompt and output.
    let repeat: fn(&mut SamplingParams) = |p| p.repetition_penalty = 2.0;
    assert_eq!(greedy_with(&[4.0, 2.1], repeat, &[0], &[]), 1);
    assert_eq!(greedy_with(&[4.0, 1.9], repeat, &[0, 0], &[0]), 0);
    assert_eq!(greedy_with(&[-1.0, -1.9], repeat, &[], &[0]), 1);
    assert_eq!(greedy_with(&[-1.0, -2.1], repeat, &[], &[0]), 0);
    // Once per occurrence, in the output alone.
    let frequent: fn(&mut SamplingParams) = |p| p.frequency_penalty = 0.5;
    assert_eq!(greedy_with(&[2.0, 1.1], frequent, &[0, 0, 0], &[0]), 0);
    assert_eq!(greedy_with(&[2.0, 1.1], frequent, &[], &[0, 0]), 1);
    // Once, however often.
    let present: fn(&mut SamplingParams) = |p| p.presence_penalty = 0.5;
    assert_eq!(greedy_with(&[2.0, 1.4], present, &[], &[0, 0, 0]), 0);
    assert_eq!(greedy_with(&[2.0, 1.6], present, &[0], &[0]), 1);
    // Repetition first: 4 / 2 - 1 is below 1.5, (4 - 1) / 2 would not have been.
    let both: fn(&mut SamplingParams) = |p| (p.repetition_penalty, p.presence_penalty) = (2.0, 1.0);
    assert_eq!(greedy_with(&[4.0, 1.2], both, &[], &[0]), 1);
}

#[test]
fn bias_min_tokens_and_allowed_tokens_change_what_can_be_picked() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let pick = |row: Row<'_>| sample(&logits, &row).token_id;
    let bias = SamplingParams { logit_bias: [(3, 3.5)].into(), ..greedy() };
    assert_eq!(pick(Row { params: bias, ..Row::default() }), 3);
    let min_tokens = SamplingParams { min_tokens: 2, ..greedy() };
    assert_eq!(pick(Row { params: min_tokens.clone(), stop: &[0], output: &[1], ..Row::default() }), 1);
    assert_eq!(pick(Row { params: min_tokens, stop: &[0], output: &[1, 1], ..Row::default() }), 0);
    assert_eq!(pick(Row { params: greedy(), allowed: Some(&[0b1100]), ..Row::default() }), 2);
    // Neither bias nor temperature brings back what is not allowed.
    let params = SamplingParams { temperature: 100.0, logit_bias: [(0, 100.0)].into(), ..SamplingParams::default() };
    for seed in 0..100 {
        let token = pick(Row { params: params.clone(), seed, allowed: Some(&[0b0110]), ..Row::default() });
        assert!([1, 2].contains(&token));
    }
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
    let p = softmax(&logits, 1.0);
    let params = SamplingParams { logit_bias: [(4, 50.0)].into(), temperature: 0.5, ..greedy() };
    let got = sample(
        &logits,
        &Row { params: SamplingParams { temperature: 0.0, ..params }, num_logprobs: Some(3), ..Row::default() },
    );
    let logprobs = got.logprobs.unwrap();
    assert_eq!((got.token_id, logprobs.rank), (4, 5));
    let near = |got: f32, p: f64| assert!((f64::from(got) - p.ln()).abs() < 1e-6, "{got} {}", p.ln());
    near(logprobs.logprob, p[4]);
    assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2]);
    logprobs.top.iter().for_each(|&(id, logprob)| near(logprob, p[id as usize]));

    let score = SamplingRow { logit_row: 0, task: RowTask::Score { token_id: 3 }, num_logprobs: Some(0) };
    let scored = sample_rows(&mut sampler(5, 1), &logits, &[score]).unwrap().remove(0).unwrap();
    let logprobs = scored.logprobs.unwrap();
    assert_eq!((scored.token_id, logprobs.rank, logprobs.top.len()), (3, 2, 0));
    near(logprobs.logprob, p[3]);
}

#[test]
fn logprobs_are_among_the_tokens_that_a_grammar_allows() {
    let logits = [1.0, 9.0, 2.0, 3.0, f32::INFINITY, -1.0];
    // Tokens 0, 2, 3 and 5; of these a ban and a bias choose the least likely.
    let params = SamplingParams { logit_bias: [(3, f32::NEG_INFINITY), (5, 20.0)].into(), ..greedy() };
    let row = Row { params, allowed: Some(&[0b10_1101]), num_logprobs: Some(6), ..Row::default() };
    let got = sample(&logits, &row);
    let p = softmax(&[1.0, 2.0, 3.0, -1.0], 1.0);
    let logprobs = got.logprobs.unwrap();
    assert_eq!((got.token_id, logprobs.rank), (5, 4));
    // Those that are forbidden come last: the list is as long as was asked for.
    let expected = [(3, p[2]), (2, p[1]), (0, p[0]), (5, p[3]), (1, 0.0), (4, 0.0)];
    assert_eq!(logprobs.top.len(), expected.len());
    for (&(id, logprob), (token, p)) in logprobs.top.iter().zip(expected) {
        let is_near = (f64::from(logprob) - p.ln()).abs() < 1e-6 || f64::from(logprob) == p.ln();
        assert!(id == token && is_near, "{id} {logprob} {token} {}", p.ln());
    }
    assert_eq!(logprobs.logprob, logprobs.top[3].1);
    // Of fewer, fewer.
    assert_eq!(sample(&logits, &Row { num_logprobs: Some(2), ..row }).logprobs.unwrap().top, logprobs.top[..2]);
}

/// Its bits are those that it has alone, and a row of the same logits that is not held to a form has those of the logits.
#[test]
fn a_grammar_changes_no_other_rows_logprobs() {
    let logits: Vec<f32> = (0..300).map(|i| (i * 37 % 300) as f32 / 20.0).collect();
    let twice = [&logits[..], &logits[..]].concat();
    let mask = [0x0001_0100; 10];
    let held = Row { allowed: Some(&mask), num_logprobs: Some(20), ..Row::default() };
    let free = Row { num_logprobs: Some(20), ..Row::default() };
    let (held_alone, free_alone) = (sample(&logits, &held), sample(&logits, &free));
    let p = softmax(&logits, 1.0);
    let told = free_alone.logprobs.as_ref().unwrap();
    assert!((f64::from(told.logprob) - p[free_alone.token_id as usize].ln()).abs() < 1e-5);
    assert!(
        held_alone.logprobs.as_ref().unwrap().top[18].1 > f32::NEG_INFINITY,
        "two of each word, and one of the last"
    );
    assert_eq!(held_alone.logprobs.as_ref().unwrap().top[19], (0, f32::NEG_INFINITY));
    let mut together = sampler(300, 4);
    for rows in [[held.at(0), free.at(1), free.at(0)], [free.at(0), held.at(0), free.at(1)]] {
        let answers = sample_rows(&mut together, &twice, &rows).unwrap();
        for (row, answer) in rows.iter().zip(answers) {
            let is_held = matches!(row.task, RowTask::Sample { allowed_tokens: Some(_), .. });
            assert_eq!(answer.as_ref().unwrap(), if is_held { &held_alone } else { &free_alone });
        }
    }
}

#[test]
fn a_row_without_a_token_says_whose_fault_it_is() {
    let answer = |logits: &[f32; 2], row: Row<'_>| {
        let mut answers = sample_rows(&mut sampler(2, 1), logits, &[row.at(0)]).unwrap();
        answers.remove(0).unwrap_err()
    };
    for (logits, largest) in
        [([f32::NAN, f32::NAN], "NaN"), ([f32::NEG_INFINITY, f32::NEG_INFINITY], "-inf"), ([f32::INFINITY, 0.0], "inf")]
    {
        assert_eq!(answer(&logits, Row::default()), RowError::NotFinite { max: largest.to_owned() });
    }
    let min_tokens = SamplingParams { min_tokens: 1, stop_token_ids: [0].into(), ..greedy() };
    let one_banned = SamplingParams { logit_bias: [(0, f32::NEG_INFINITY)].into(), ..greedy() };
    // Beside an infinite logit, also one that is banned, no other has a probability.
    let row = Row { params: one_banned.clone(), num_logprobs: Some(1), ..Row::default() };
    assert_eq!(answer(&[f32::INFINITY, 0.0], row), RowError::NotFinite { max: "inf".to_owned() });
    let both_banned =
        SamplingParams { logit_bias: [(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)].into(), ..greedy() };
    let (min_and_ban, mask) = (SamplingParams { min_tokens: 1, ..one_banned.clone() }, Some(&[1][..]));
    let default = Row::default;
    let cases: [(Row<'_>, &[&str], &[&str]); 6] = [
        (Row { allowed: Some(&[0]), ..default() }, &["allowed_token_ids"], &["min_tokens", "logit_bias"]),
        (
            Row { params: min_tokens.clone(), stop: &[1], ..default() },
            &["min_tokens", "stop_token_ids"],
            &["logit_bias"],
        ),
        (Row { params: both_banned, ..default() }, &["logit_bias"], &["min_tokens"]),
        (Row { params: min_and_ban, stop: &[1], ..default() }, &["min_tokens", "logit_bias"], &["allowed"]),
        (Row { params: one_banned, allowed: mask, ..default() }, &["allowed_token_ids", "logit_bias"], &["min_tokens"]),
        (Row { params: min_tokens, allowed: mask, ..default() }, &["allowed_token_ids", "min_tokens"], &["logit_bias"]),
    ];
    for (row, named, not_named) in cases {
        let error = answer(&[0.0, 1.0], row);
        let text = error.to_string();
        assert!(matches!(error, RowError::NoTokenAllowed { .. }), "{text}");
        assert!(
            named.iter().all(|name| text.contains(name)) && !not_named.iter().any(|name| text.contains(name)),
            "{text}"
        );
    }
}

#[test]
fn a_penalty_beyond_all_numbers_leaves_the_largest_number() {
    let row = |repetition_penalty, temperature| Row {
        params: SamplingParams { repetition_penalty, temperature, ..SamplingParams::default() },
        prompt: &[0, 1, 2],
        ..Row::default()
    };
    let pick = |logits: &[f32], row: Row<'_>| sample(logits, &row).token_id;
    for temperature in [0.0, 1.0] {
        // 2 / 1e-40 is no number: of tokens at the largest number the first is the most likely, of those below it none is.
        assert_eq!(pick(&[-1.0, 2.0, -3.0], row(1e-40, temperature)), 1);
        // -3 * 3e38 is none either, and token 3 was not seen.
        assert_eq!(pick(&[-3.0, -4.0, -5.0, -1e38], row(3e38, temperature)), 3);
    }
    assert_eq!(pick(&[1.0, 2.0, 3.0], row(1e-40, 0.0)), 0);
    // It does not bring back what is forbidden.
    let held =
        Row { params: SamplingParams { min_tokens: 1, ..row(1e-40, 0.0).params }, stop: &[0, 1], ..row(1e-40, 0.0) };
    assert_eq!(pick(&[1.0, 2.0, -3.0], held), 2);
}

#[test]
fn a_bias_that_bans_all_but_one_token_picks_that_one() {
    let logits: Vec<f32> = (0..200).map(|i| (i * 37 % 200) as f32 / 10.0).collect();
    for temperature in [0.0, 1.0] {
        let logit_bias = (0..200).filter(|&token| token != 77).map(|token| (token, -100.0)).collect();
        let params = SamplingParams { logit_bias, temperature, ..SamplingParams::default() };
        assert_eq!(sample(&logits, &Row { params, ..Row::default() }).token_id, 77);
    }
}

#[test]
fn limits_of_likelihood_include_what_just_reaches_them() {
    let drawn = |logits: &[f32], params: SamplingParams| -> Vec<bool> {
        counts(logits, &params, 200).iter().map(|&count| count > 0).collect()
    };
    let default = SamplingParams::default;
    // The best token is as likely as itself.
    assert_eq!(drawn(&[1.0, 2.0, 2.0, 0.0], SamplingParams { min_p: 1.0, ..default() }), [false, true, true, false]);
    // Two of four equal tokens have half of the probability, with and without another limit.
    for top_k in [0, 4] {
        let params = SamplingParams { top_p: 0.5, top_k, ..default() };
        assert_eq!(drawn(&[1.0; 4], params), [true, true, false, false]);
    }
}

#[test]
fn a_fault_of_the_caller_is_an_error() {
    let fails = |logits: &[f32], row: SamplingRow<'_>| sample_rows(&mut sampler(2, 1), logits, &[row]).unwrap_err();
    assert!(fails(&[0.0, 1.0], Row::default().at(1)).contains("row 1"));
    let unknown = SamplingRow { logit_row: 0, task: RowTask::Score { token_id: 2 }, num_logprobs: None };
    assert!(fails(&[0.0, 1.0], unknown).contains("token 2"));
}

#[test]
fn a_fault_does_not_reach_the_next_rows() {
    let mut two = sampler(2, 4);
    let (row, good, bad) = (Row::default(), [0.0, 1.0, 1.0, 0.0], [f32::NAN, f32::NAN, 1.0, 0.0]);
    let rows = [row.at(0), row.at(1)];
    let half = sample_rows(&mut two, &bad, &rows).unwrap();
    assert!(half[0].is_err());
    assert!(sample_rows(&mut two, &good, &[row.at(2)]).is_err());
    let after = sample_rows(&mut two, &good, &rows).unwrap();
    assert_eq!(half[1], after[1]);
    assert_eq!(after, sample_rows(&mut sampler(2, 4), &good, &rows).unwrap());
}

prop_compose! {
    fn any_params()(
        temperature in prop_oneof![Just(0.0f32), 0.1f32..3.0],
        top_k in prop_oneof![Just(0u32), 1u32..50],
        top_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
        repetition_penalty in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        presence_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        min_tokens in 0u32..4,
        logit_bias in prop::collection::vec((0u32..700, -5.0f32..5.0), 0..3),
    ) -> SamplingParams {
        SamplingParams {
            temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, min_tokens,
            logit_bias: logit_bias.into(),
            ..SamplingParams::default()
        }
    }
}

proptest! {
    /// A row's sample is the same alone, in any company and order, on any threads, and whatever the working memory held.
    #[test]
    fn rows_do_not_depend_on_each_other(
        rows in prop::collection::vec((any_params(), any::<u64>(), prop::collection::vec(0u32..700, 0..6), any::<u32>()), 1..12),
        order in any::<prop::sample::Index>(),
    ) {
        const VOCAB: usize = 700;
        let logits: Vec<f32> = rows.iter().flat_map(|row| (0..VOCAB as u32).map(|t| {
            // Any numbers from -8 to 8 that differ between rows and tokens.
            let hash = (t ^ row.3).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA77);
            hash as f32 / u32::MAX as f32 * 16.0 - 8.0
        })).collect();
        let sampled: Vec<Row<'_>> = rows.iter().map(|(params, seed, tokens, _)| Row {
            params: params.clone(),
            seed: *seed,
            prompt: tokens,
            output: &tokens[..tokens.len() / 2],
            stop: &[5, 6],
            allowed: None,
            num_logprobs: Some(5),
        }).collect();
        let alone: Vec<Sample> = (0..rows.len()).map(|i| sample(&logits[i * VOCAB..][..VOCAB], &sampled[i])).collect();
        let mut threads = OnBackend::new(CpuBackend::new(Some(3)), VOCAB, 4);
        for _ in 0..2 {
            let turn = order.index(rows.len());
            let indices: Vec<usize> = (0..rows.len()).map(|i| (i + turn) % rows.len()).collect();
            let batch: Vec<SamplingRow<'_>> = indices.iter().map(|&i| sampled[i].at(i)).collect();
            let together = threads.sample(&logits, &batch).unwrap();
            prop_assert_eq!(together.len(), indices.len());
            for (i, got) in indices.into_iter().zip(&together) {
                prop_assert_eq!(got.as_ref().unwrap(), &alone[i]);
            }
        }
    }
}
