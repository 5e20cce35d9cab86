//! Where weights go. It knows no model.

use crate::load::error::LoadError;
use vllm_apple_ops::{Backend, DType, HostTensor, Tensor, Weight, WeightFormat, WeightSource};

/// Takes the weights of a model.
pub(crate) trait WeightStore {
    /// Whether it reads what it is given: then the next layer's pages are asked for early.
    const READS: bool;
    /// A weight matrix, or those of all experts.
    type Matrix;
    /// A norm's weight or a bias, in f32, or an order of columns.
    type Vector;

    /// See [`Backend::load_weight`].
    fn matrix(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Self::Matrix, LoadError>;

    /// See [`Backend::keeps_host_tensors`].
    fn keeps_host_tensors(&self) -> bool;

    /// So many vectors of all parts, one after the other.
    fn vectors(&self, parts: &[HostTensor<'_>], rows: usize) -> Result<Self::Vector, LoadError>;

    /// The vector `(weight + offset) * factor`.
    fn norm(&self, weight: HostTensor<'_>, offset: f32, factor: f32) -> Result<Self::Vector, LoadError>;

    /// The order in which a matrix, or that of each of so many experts, takes the columns of its input.
    fn order(&self, columns: &[u32], experts: Option<usize>) -> Result<Self::Vector, LoadError>;
}

impl<B: Backend> WeightStore for B {
    const READS: bool = true;
    type Matrix = Weight<B::Packed>;
    type Vector = Tensor<B::Memory>;

    fn matrix(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Self::Matrix, LoadError> {
        Ok(self.load_weight(source, format)?)
    }

    fn keeps_host_tensors(&self) -> bool {
        Backend::keeps_host_tensors(self)
    }

    fn vectors(&self, parts: &[HostTensor<'_>], rows: usize) -> Result<Self::Vector, LoadError> {
        upload(self, &parts.iter().flat_map(|part| part.dtype.decode(part.bytes)).collect::<Vec<_>>(), rows)
    }

    fn norm(&self, weight: HostTensor<'_>, offset: f32, factor: f32) -> Result<Self::Vector, LoadError> {
        upload(self, &norm_values(weight, offset, factor), 1)
    }

    fn order(&self, columns: &[u32], experts: Option<usize>) -> Result<Self::Vector, LoadError> {
        let rows = experts.unwrap_or(1);
        let mut tensor = self.allocate(DType::U32, rows, columns.len() / rows)?;
        self.write(&mut tensor, bytemuck::cast_slice(columns));
        Ok(tensor)
    }
}

fn upload<B: Backend>(backend: &B, values: &[f32], rows: usize) -> Result<Tensor<B::Memory>, LoadError> {
    let mut tensor = backend.allocate(DType::F32, rows, values.len() / rows)?;
    backend.write(&mut tensor, bytemuck::cast_slice(values));
    Ok(tensor)
}

fn norm_values(weight: HostTensor<'_>, offset: f32, factor: f32) -> Vec<f32> {
    weight.dtype.decode(weight.bytes).iter().map(|w| (w + offset) * factor).collect()
}
