//! The tensors of a GGUF model under the names that checkpoints of safetensors have. It knows no blocks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use safetensors::tensor::Dtype;
use vllm_apple_ops::{DType, HostTensor, MappedFile};

use super::{Checkpoint, Entry, Shard};
use crate::load::config::MlpConfig;
use crate::load::error::LoadError;
use crate::load::gguf::{self, Blocks, Model, RowOrder};
use crate::load::mapped_file::WeightsFile;
use crate::load::matrix::{Codes, Matrix, rows_of};
use crate::load::packed::{Method, Wanted};

/// Read with the configuration.
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl Checkpoint {
    /// Adds all files of the model whose first is `path`.
    pub(super) fn add_gguf(&mut self, path: &Path) -> Result<(), LoadError> {
        let invalid = |path: &Path, reason| LoadError::Gguf { path: path.to_owned(), reason };
        let shares = |mlp: &MlpConfig| matches!(mlp, MlpConfig::Moe(moe) if moe.shared_intermediate_size.is_some());
        let model = Model {
            names: &self.family.names,
            shares_experts: self.config.layers.iter().any(|layer| shares(&layer.mlp)),
            interleaved: ["llama", "mixtral"].contains(&self.family.model_type),
            head_dim: self.config.head_dim,
        };
        let [heads, kv_heads] = [self.config.num_attention_heads, self.config.num_key_value_heads];
        let qkv = [heads, kv_heads, kv_heads].map(|heads| heads * self.config.head_dim);
        for path in gguf::parts(path).map_err(|reason| invalid(path, reason))? {
            let weights = Arc::new(WeightsFile::open(path)?);
            let container = gguf::read(weights.bytes()).map_err(|reason| invalid(weights.path(), reason))?;
            let tensors = container.tensors.into_iter().filter(|tensor| tensor.name != ROPE_FACTORS);
            let apart = |tensor: gguf::Tensor| {
                let in_file = tensor.name.clone();
                tensor.apart(qkv).into_iter().map(move |tensor| (in_file.clone(), tensor))
            };
            for (in_file, tensor) in tensors.flat_map(apart) {
                let (name, shape, order) = gguf::translated(&tensor, &model);
                // Blocks have no type of their own among those of safetensors.
                let dtype = match tensor.kind.float() {
                    Some(DType::F32) => Dtype::F32,
                    Some(DType::F16) => Dtype::F16,
                    Some(_) => Dtype::BF16,
                    None => Dtype::U8,
                };
                let entry = Entry {
                    shard: self.shards.len(),
                    dtype,
                    ggml: Some((tensor.kind, order)),
                    shape,
                    bytes: tensor.bytes.clone(),
                    in_file: Some(in_file),
                    used: AtomicBool::new(false),
                };
                if self.tensors.insert(name, entry).is_some() {
                    let reason = format!("the tensor {} is there twice", tensor.name);
                    return Err(invalid(weights.path(), reason));
                }
            }
            self.shards.push(Shard { file: weights.clone(), weights });
        }
        Ok(())
    }

    /// What the file calls a tensor, or would call it if it had it: for errors. Several names stand one after the other with `+` between them.
    pub(crate) fn in_file(&self, names: &str) -> String {
        if self.method != Some(Method::Gguf) {
            return names.to_owned();
        }
        let of_entry = |name| self.tensors.get(name).and_then(|entry| entry.in_file.clone());
        let in_file = |name| of_entry(name).unwrap_or_else(|| gguf::in_file(name, &self.family.names));
        names.split('+').map(in_file).collect::<Vec<_>>().join("+")
    }

    /// A matrix of a GGUF file.
    pub(crate) fn gguf(&self, wanted: Wanted<'_>) -> Result<Matrix<'_>, LoadError> {
        let Wanted { name, expert, rows, cols } = wanted;
        let order = |view: &super::View<'_>| view.ggml.map_or(RowOrder::Plain, |(_, order)| order);
        let found = self.view(&format!("{name}.weight"), expert);
        let Some((view, kind)) = found.and_then(|view| view.ggml.map(|(kind, _)| (view, kind))) else {
            return self.float_matrix(wanted).map(Matrix::Float);
        };
        let Some(spelling) = kind.spelling() else {
            let tensor = self.float_matrix(wanted)?;
            return Ok(match order(&view) {
                RowOrder::Plain => Matrix::Float(tensor),
                order => Matrix::Rows(rows_of(tensor, |row| order.stored(row))),
            });
        };
        if view.shape != [rows, cols] {
            let (path, got) = (self.file_of(&format!("{name}.weight")), view.shape.to_vec());
            return Err(LoadError::Shape { path, tensor: view.name, expected: vec![rows, cols], got });
        }
        let (rows_in, bytes) = (order(&view), view.bytes);
        let factor = if kind == gguf::Type::Nvfp4 { self.gguf_factor(wanted)? } else { 1.0 };
        let groups = Blocks { kind, bytes, cols, group_size: spelling.group_size, rows: rows_in, factor };
        let (name, groups) = (view.name, Box::new(groups));
        Ok(Matrix::Codes(Codes { name, rows, cols, spelling, order: None, groups }))
    }

    /// What multiplies all scales of a matrix of NVFP4. What its activations were divided by is of no use here, which does not quantise them.
    fn gguf_factor(&self, wanted: Wanted<'_>) -> Result<f32, LoadError> {
        self.allow(&format!("{}.input_scale", wanted.name));
        let is_there = self.tensors.contains_key(&format!("{}.scale", wanted.name));
        if is_there { self.number(wanted, "scale") } else { Ok(1.0) }
    }

    /// The elements of a vector, in the order of the rows of the matrix that it belongs to.
    pub(crate) fn elements(&self, name: &str, len: usize) -> Result<Vec<HostTensor<'_>>, LoadError> {
        let vector = self.vector(name, len)?;
        Ok(match self.tensors.get(name).and_then(|entry| entry.ggml) {
            Some((_, order)) if order != RowOrder::Plain => {
                rows_of(HostTensor { rows: len, cols: 1, ..vector }, |row| order.stored(row))
            }
            _ => vec![vector],
        })
    }
}
