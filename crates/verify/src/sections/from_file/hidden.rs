//! The residual stream after each layer, beside what transformers left there.

use crate::models::CheckedModel;
use crate::report::{Line, Plot, Series};
use crate::sections::layers::relative;
use crate::subject::VerifyError;

use super::F32;
use super::file::Expected;
use super::parts;

/// Of each layer, the root of the mean square of errors by that of the values, over the prompt's positions.
pub(super) fn errors(model: &mut dyn CheckedModel, prompt: &Expected) -> Result<Vec<f64>, VerifyError> {
    let mut sums: Vec<[f64; 2]> = Vec::new();
    for part in parts(model.info(), prompt) {
        model.forward(&part.batch)?;
        let log = model.take_log();
        for (layer, record) in log.iter().filter(|record| !record.residual.is_empty()).enumerate() {
            sums.resize(sums.len().max(layer + 1), [0.0; 2]);
            for (row, &position) in part.positions.iter().enumerate() {
                let want = prompt.hidden(layer + 1, part.first + row);
                let got = &record.residual[(position as usize - part.start) * want.len()..][..want.len()];
                for (&got, &want) in got.iter().zip(want) {
                    sums[layer][0] += (f64::from(got) - f64::from(want)).powi(2);
                    sums[layer][1] += f64::from(want).powi(2);
                }
            }
        }
    }
    Ok(sums.into_iter().map(relative).collect())
}

/// The line of all prompts. Errors of the stream reach the logits as large as they are, relative to both: so in f32 the logits' bound is one of
/// the stream.
pub(super) fn line(of_prompts: &[(String, Vec<f64>)], layers: usize, exact: bool) -> Line {
    let all = of_prompts.iter().flat_map(|(name, errors)| errors.iter().enumerate().map(move |at| (name, at)));
    let worst = all.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b));
    let first = of_prompts.iter().filter_map(|(_, errors)| errors.iter().position(|&error| error > F32)).min();
    let found = worst.map_or_else(String::new, |(name, (layer, error))| {
        let beyond = match (exact, first) {
            (true, Some(first)) => format!("; the first layer beyond the bound is {first}"),
            _ => String::new(),
        };
        format!("largest error {error:.2e} of the stream's size, after layer {layer}, {name}{beyond}")
    });
    let what = format!("hidden states after each of {layers} layers");
    let whole = of_prompts.iter().all(|(_, errors)| errors.len() == layers);
    match exact {
        true => Line::judged(what, found, format!("at most {F32:.2e}, as of logits"), whole && first.is_none()),
        false => Line::figure(what, found),
    }
}

pub(super) fn plot(of_prompts: Vec<(String, Vec<f64>)>) -> Plot {
    let points = |errors: Vec<f64>| errors.iter().enumerate().map(|(layer, &e)| (layer as f64, e.max(1e-12))).collect();
    Plot {
        title: "The residual stream after each layer, from that of transformers".into(),
        x: "layer".into(),
        y: "relative error".into(),
        log_x: false,
        log_y: true,
        series: of_prompts.into_iter().map(|(name, errors)| Series { name, points: points(errors) }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn the_first_layer_beyond_the_bound_is_named() {
        let prompts =
            |errors: &[f64]| vec![("fox".to_owned(), vec![1e-6, 2e-6, 3e-6]), ("code".to_owned(), errors.to_vec())];
        let good = line(&prompts(&[1e-6, 4e-6, 2e-6]), 3, true);
        assert_eq!(good.outcome, Outcome::Pass);
        assert!(good.found.ends_with("4.00e-6 of the stream's size, after layer 1, code"), "{}", good.found);
        let wrong = line(&prompts(&[1e-6, 2e-2, f64::INFINITY]), 3, true);
        assert_eq!(wrong.outcome, Outcome::Fail);
        assert!(wrong.found.contains("after layer 2, code; the first layer beyond the bound is 1"), "{}", wrong.found);
        assert_eq!(line(&prompts(&[1e-6, 2e-6]), 3, true).outcome, Outcome::Fail, "a layer is missing");
        assert_eq!(line(&prompts(&[1.0, 1.0, 1.0]), 3, false).outcome, Outcome::Figure);
    }
}
