//! The file that tools/reference.py writes. It knows no device.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Deserialize;

use crate::subject::VerifyError;

/// The largest file that is read: it holds rows of logits.
const MOST: u64 = 8 << 30;
const KEY: &str = "reference";

/// Of the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
}

/// What another program computed.
#[derive(Debug)]
pub(super) struct Reference {
    pub prompts: Vec<Expected>,
    /// PyTorch's own largest error, by the name of a type.
    pub error: HashMap<String, f64>,
}

/// What it computed of a prompt.
#[derive(Debug)]
pub(super) struct Expected {
    pub name: String,
    pub token_ids: Vec<u32>,
    /// Ascending; the rows of `logits`.
    pub positions: Vec<u32>,
    pub logits: Vec<f32>,
    /// The embedding, and what each layer leaves: `[layers + 1, positions, hidden_size]`.
    pub hidden: Vec<f32>,
    pub hidden_size: usize,
    /// Tokens that follow.
    pub greedy: Vec<u32>,
    /// By how much the logit of each was the largest.
    pub gaps: Vec<f32>,
}

#[derive(Deserialize)]
struct About {
    prompts: Vec<String>,
    error: HashMap<String, f64>,
}

impl Reference {
    /// The file's content, for a model of these sizes.
    pub fn read(path: &Path, sizes: Sizes) -> Result<Self, VerifyError> {
        let wrong = |what: String| VerifyError::Input(format!("the reference: {what}; tools/reference.py makes one"));
        let bytes = vllm_apple_model::file::read(path, MOST).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&bytes, sizes).map_err(wrong)
    }

    fn parse(bytes: &[u8], sizes: Sizes) -> Result<Self, String> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let about = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let about = about.ok_or_else(|| format!("it has no metadata `{KEY}`"))?;
        let About { prompts: names, error } = serde_json::from_str(about).map_err(|error| error.to_string())?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let prompt = |(at, name): (usize, String)| Expected::parse(&tensors, at, name, sizes);
        let prompts = names.into_iter().enumerate().map(prompt).collect::<Result<Vec<_>, _>>()?;
        if prompts.is_empty() {
            return Err("it has no prompts".to_owned());
        }
        Ok(Self { prompts, error })
    }

    /// The standard deviation of all logits.
    pub fn deviation(&self) -> f64 {
        let values = || self.prompts.iter().flat_map(|prompt| &prompt.logits).map(|&value| f64::from(value));
        let count = values().count().max(1) as f64;
        let mean = values().sum::<f64>() / count;
        (values().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
    }
}

impl Expected {
    fn parse(tensors: &SafeTensors<'_>, at: usize, name: String, sizes: Sizes) -> Result<Self, String> {
        let bytes = |what: &str, dtype: Dtype| {
            let key = format!("prompt.{at}.{what}");
            let view = tensors.tensor(&key).map_err(|error| format!("{key}: {error}"))?;
            match view.dtype() == dtype {
                true => Ok(view.data().to_vec()),
                false => Err(format!("{key} is of type {:?}, expected {dtype:?}", view.dtype())),
            }
        };
        let ids = |what: &str| Ok::<_, String>(words(&bytes(what, Dtype::I32)?, u32::from_le_bytes));
        let floats = |what: &str| Ok::<_, String>(words(&bytes(what, Dtype::F32)?, f32::from_le_bytes));
        let expected = Self {
            token_ids: ids("token_ids")?,
            positions: ids("positions")?,
            logits: floats("logits")?,
            hidden: floats("hidden")?,
            hidden_size: sizes.hidden,
            greedy: ids("greedy")?,
            gaps: floats("gaps")?,
            name,
        };
        expected.check(sizes).map_err(|what| format!("{}: {what}", expected.name))?;
        Ok(expected)
    }

    /// What position number `row` has after that many layers.
    pub fn hidden(&self, layers: usize, row: usize) -> &[f32] {
        &self.hidden[(layers * self.positions.len() + row) * self.hidden_size..][..self.hidden_size]
    }

    fn check(&self, Sizes { vocab, hidden, layers }: Sizes) -> Result<(), String> {
        let Self { token_ids, positions, logits, greedy, gaps, .. } = self;
        let ascending = positions.is_sorted_by(|a, b| a < b);
        match () {
            () if token_ids.iter().chain(greedy).any(|&id| id as usize >= vocab) => {
                Err(format!("a token is not below the vocabulary size {vocab}: it is of another model"))
            }
            () if !ascending || positions.last().is_none_or(|&last| last as usize >= token_ids.len()) => {
                Err("its positions do not ascend within the prompt".to_owned())
            }
            () if logits.len() != positions.len() * vocab => {
                let (got, rows) = (logits.len(), positions.len());
                Err(format!("it has {got} logits for {rows} positions and a vocabulary of {vocab}"))
            }
            () if self.hidden.len() != (layers + 1) * positions.len() * hidden => {
                let got = self.hidden.len();
                Err(format!("it has {got} values of hidden states, not those of {layers} layers of {hidden}"))
            }
            () if logits.iter().chain(&self.hidden).chain(gaps).any(|value| !value.is_finite()) => {
                Err("it has values that are no numbers".to_owned())
            }
            () if greedy.is_empty() || gaps.len() != greedy.len() => Err("it has no first tokens".to_owned()),
            () => Ok(()),
        }
    }
}

fn words<T>(bytes: &[u8], from: impl Fn([u8; 4]) -> T) -> Vec<T> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| from(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    const SIZES: Sizes = Sizes { vocab: 3, hidden: 2, layers: 1 };

    /// A file of one prompt of two tokens, with a vocabulary of 3 and a layer of 2, of which `change` changes a tensor.
    fn file(change: impl Fn(&str, &mut Vec<u32>)) -> Vec<u8> {
        let mut parts = vec![
            ("token_ids", Dtype::I32, vec![1u32, 2]),
            ("positions", Dtype::I32, vec![0, 1]),
            ("logits", Dtype::F32, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_bits).into()),
            ("hidden", Dtype::F32, [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0].map(f32::to_bits).into()),
            ("greedy", Dtype::I32, vec![2]),
            ("gaps", Dtype::F32, vec![1.0f32.to_bits()]),
        ];
        parts.iter_mut().for_each(|(name, _, values)| change(name, values));
        let bytes: Vec<(String, Dtype, Vec<u8>)> = parts
            .into_iter()
            .map(|(name, dtype, values)| {
                (format!("prompt.0.{name}"), dtype, values.into_iter().flat_map(u32::to_le_bytes).collect())
            })
            .collect();
        let views = bytes
            .iter()
            .map(|(name, dtype, bytes)| (name.clone(), TensorView::new(*dtype, vec![bytes.len() / 4], bytes).unwrap()));
        let about = r#"{"prompts": ["fox"], "error": {"bfloat16": 0.5}, "model": "m"}"#;
        safetensors::serialize(views, Some(HashMap::from([(KEY.to_owned(), about.to_owned())]))).unwrap()
    }

    #[test]
    fn a_file_is_read() {
        let reference = Reference::parse(&file(|_, _| {}), SIZES).unwrap();
        assert_eq!(reference.prompts[0].hidden(1, 1), [6.0, 7.0]);
        assert_eq!((reference.prompts[0].name.as_str(), &reference.prompts[0].positions[..]), ("fox", &[0, 1][..]));
        assert_eq!(reference.error["bfloat16"], 0.5);
        assert!((reference.deviation() - (35.0f64 / 12.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let error = |name: &'static str, values: &'static [u32], vocab| {
            let bytes = file(|part, old| {
                if part == name {
                    *old = values.to_vec();
                }
            });
            Reference::parse(&bytes, Sizes { vocab, ..SIZES }).unwrap_err()
        };
        assert!(error("token_ids", &[1, 7], 3).contains("another model"));
        assert!(error("positions", &[1, 0], 3).contains("ascend"));
        assert!(error("positions", &[0, 2], 3).contains("ascend"));
        assert!(error("positions", &[], 3).contains("ascend"));
        assert!(error("logits", &[0], 3).contains("1 logits"));
        assert!(error("hidden", &[0], 3).contains("1 values of hidden states"));
        assert!(error("greedy", &[], 3).contains("first tokens"));
        assert!(error("", &[], 4).contains("6 logits"));
        assert!(error("gaps", &[0x7fc0_0000], 3).contains("no numbers"));
        assert!(Reference::parse(b"nothing", SIZES).is_err());
    }
}
