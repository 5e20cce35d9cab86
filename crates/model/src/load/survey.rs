//! What a model's weights are, found without reading them: loading into a [`Survey`] finds every tensor that is missing or has another shape
//! or type than it should. It knows no device.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::load::error::LoadError;
use crate::load::weights::WeightStore;
use vllm_apple_ops::{
    Activations, Backend, Codebook, DType, HostTensor, Quantised, Scales, WeightFormat, WeightSource,
};

/// The formats of a model's weights, and whether one wants its input permuted.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    formats: RefCell<BTreeMap<WeightFormat, Weights>>,
    permutes: Cell<Permutes>,
}

/// Which weights take the columns of their input in another order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permutes {
    /// Of all tokens.
    pub(crate) inputs: bool,
    /// Of pairs of a token and an expert.
    pub(crate) pairs: bool,
}

/// The weights of a format.
#[derive(Debug)]
struct Weights {
    /// The name of one of them.
    name: String,
    /// Of each its matrices, and their rows and columns.
    shapes: Vec<(usize, usize, usize)>,
}

impl WeightStore for Survey {
    const READS: bool = false;
    type Matrix = ();
    type Vector = ();

    fn matrix(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<(), LoadError> {
        let (rows, cols) = source.check(format)?;
        let mut formats = self.formats.borrow_mut();
        let new = || Weights { name: source.name.to_owned(), shapes: Vec::new() };
        formats.entry(format).or_insert_with(new).shapes.push((source.groups, rows, cols));
        Ok(())
    }

    fn keeps_host_tensors(&self) -> bool {
        false
    }

    fn vectors(&self, _: &[HostTensor<'_>], _: usize) -> Result<(), LoadError> {
        Ok(())
    }

    fn norm(&self, _: HostTensor<'_>, _: f32, _: f32) -> Result<(), LoadError> {
        Ok(())
    }

    fn order(&self, _: &[u32], experts: Option<usize>) -> Result<(), LoadError> {
        let Permutes { inputs, pairs } = self.permutes.get();
        self.permutes.set(Permutes { inputs: inputs || experts.is_none(), pairs: pairs || experts.is_some() });
        Ok(())
    }
}

impl Survey {
    /// Bytes of all weights on a backend that computes with them.
    pub(crate) fn bytes(&self, backend: &impl Backend) -> u128 {
        let formats = self.formats.borrow();
        let of_format = |(&format, weights): (&WeightFormat, &Weights)| {
            let bytes =
                weights.shapes.iter().map(|&(groups, rows, cols)| backend.weight_bytes(format, groups, rows, cols));
            bytes.sum::<u128>()
        };
        formats.iter().map(of_format).sum()
    }

    /// Which of them take the columns of their input in another order.
    pub(crate) fn permutes(&self) -> Permutes {
        self.permutes.get()
    }

    /// All formats.
    pub(crate) fn formats(&self) -> Vec<WeightFormat> {
        self.formats.borrow().keys().copied().collect()
    }

    /// The format of most of them; `otherwise` if there are none.
    pub(crate) fn most(&self, otherwise: WeightFormat) -> WeightFormat {
        let formats = self.formats.borrow();
        let most = formats.iter().max_by_key(|&(&format, weights)| {
            let bytes = |&(groups, rows, cols)| groups as u128 * format.bytes(rows, cols);
            weights.shapes.iter().map(bytes).sum::<u128>()
        });
        most.map_or(otherwise, |(&format, _)| format)
    }

    /// A format for which ops need as much beside the weights as for any of these: with the smallest groups, and biases if one has them.
    pub(crate) fn neediest(&self, otherwise: WeightFormat) -> WeightFormat {
        let formats = self.formats.borrow();
        let quantised = formats.keys().filter_map(|format| match format {
            WeightFormat::Quantised(quantised) => Some(*quantised),
            WeightFormat::Float(_) => None,
        });
        let neediest = quantised.reduce(|a, b| {
            let group_size = a.group_size.min(b.group_size);
            Quantised {
                input: a.input,
                codebook: Codebook::INT8,
                group_size,
                scales: Scales::Float(DType::F32),
                biases: a.biases || b.biases,
                activations: a.activations.max(b.activations),
            }
        });
        neediest.map_or(otherwise, WeightFormat::Quantised)
    }

    /// Whether some weights are multiplied by such activations, if these are not exact.
    ///
    /// # Errors
    /// None is: all are floats.
    pub(crate) fn check_activations(&self, asked: Activations) -> Result<(), LoadError> {
        let formats = self.formats.borrow();
        if asked == Activations::Exact
            || formats
                .keys()
                .any(|format| format.with(asked) == *format && matches!(format, WeightFormat::Quantised(_)))
        {
            return Ok(());
        }
        let expected =
            "auto, as the checkpoint's weights are floats, or `quantization` int8 or int4 beside it".to_owned();
        Err(LoadError::Option { option: "`activation_dtype`", expected, got: asked.to_string() })
    }

    /// Whether a backend computes with all of them.
    ///
    /// # Errors
    /// What the backend says of the first that it does not, and a weight that has it.
    pub(crate) fn check(&self, backend: &impl Backend) -> Result<(), LoadError> {
        self.formats.borrow().iter().try_for_each(|(&format, weights)| {
            backend.check_weight_format(format).map_err(|error| match format {
                WeightFormat::Float(_) => error.into(),
                WeightFormat::Quantised(_) => LoadError::WeightFormat { name: weights.name.clone(), error },
            })
        })
    }
}
