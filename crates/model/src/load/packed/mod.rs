//! Quantised matrices as checkpoints of safetensors spell them: what config.json says of them, and who reads which. It knows no model.

mod act_order;
pub(crate) mod beside;
mod compressed;
mod fp8;
mod gptq;
mod mlx;
mod modelopt;
mod mxfp4;
mod small_floats;

use safetensors::tensor::Dtype;
use serde_json::Value;
use vllm_apple_ops::{DType, Scales};

use crate::load::checkpoint::{Checkpoint, View, float_type};
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::matrix::{Codes, Matrix};

/// How a checkpoint's quantised matrices are spelled. A matrix that is not so spelled is of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// `weight` of codes, `scales`, and `biases` in the mode `affine`.
    Mlx,
    /// `weight_packed` or `weight` of one byte, `weight_scale`, and perhaps `weight_zero_point`, which matrices of whole numbers must have if they are
    /// `asymmetric`.
    CompressedTensors { block: Option<Block>, bits: Bits, asymmetric: bool },
    /// `qweight`, `qzeros` and `scales`, packed along the outputs.
    Awq,
    /// The same packed along K, with zero points that are stored minus `less`, groups of so many columns where config.json says that (of most matrices, if
    /// they are not all `alike`), and the group of each column if it is `ordered`.
    Gptq { less: u8, group_size: Option<usize>, alike: bool, ordered: bool },
    /// `weight` of one byte, and `weight_scale` or `weight_scale_inv`: what the scales are factors of, or with `inverse` what it is divided by.
    Fp8 { block: Block, inverse: bool },
    /// `weight` of bytes, `weight_scale`, and perhaps `weight_scale_2`.
    ModelOpt,
    /// `…_blocks` and `…_scales` of all experts; other matrices are of floats.
    Mxfp4,
    /// Blocks of codes and scales.
    Gguf,
}

/// What a configuration says of quantised matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) method: Method,
    /// By which vLLM and others call it: the method's, or that of a maker who has no spelling of its own.
    pub(crate) name: &'static str,
}

/// Of a maker whose matrices are spelled as others'.
const AUTO_ROUND: &str = "auto-round";

/// Methods for messages.
pub(crate) const SUPPORTED: &str = "awq (version gemm), gptq, auto-round (packed as auto_round, auto_gptq, gptqmodel, auto_awq, fp8, fp8_static, llm_compressor or mlx), fp8, mxfp4, compressed-tensors (pack-quantized, int-quantized, float-quantized, nvfp4- and mxfp4-pack-quantized, \
     mxfp8- and naive-quantized, mixed-precision of these), modelopt (FP8, NVFP4, MXFP8, MXFP4, and mixtures of these), metal, and those of MLX \
     (affine, mxfp4, mxfp8 and nvfp4)";

impl Method {
    /// By which vLLM and others call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Mlx => "mlx",
            Self::CompressedTensors { .. } => "compressed-tensors",
            Self::Awq => "awq",
            Self::Gptq { .. } => "gptq",
            Self::Fp8 { .. } => "fp8",
            Self::ModelOpt => "modelopt",
            Self::Mxfp4 => "mxfp4",
            Self::Gguf => "gguf",
        }
    }

    /// What `config.json` says: `None` if it says nothing of it.
    pub(crate) fn read(fields: &Fields) -> Result<Option<Found>, LoadError> {
        // The second is what compressed-tensors called it first, the third what MLX does.
        for name in ["quantization_config", "compression_config", "quantization"] {
            if let Some(config) = fields.object(name)? {
                return Self::of(&config, config.string("quant_method")?);
            }
        }
        Ok(None)
    }

    /// With what its groups of layers say.
    fn compressed_tensors(config: &Fields) -> Result<Self, LoadError> {
        // Which group a matrix is of its tensors say: what all groups say is so of each.
        let (mut blocks, mut bits, mut asymmetric) = (Vec::new(), Bits(0), None);
        let groups = config.object("config_groups")?;
        let names: Vec<String> = groups.iter().flat_map(Fields::names).map(str::to_owned).collect();
        for name in names {
            let group = groups.as_ref().map(|groups| groups.object(&name)).transpose()?.flatten();
            let Some(weights) = group.map(|group| group.object("weights")).transpose()?.flatten() else { continue };
            if weights.string("strategy")? == Some("block") {
                blocks.push(block(&weights, "block_structure")?);
            }
            bits = bits.with(weights.size("num_bits")?);
            let of_group = weights.boolean("symmetric")? == Some(false);
            asymmetric = Some(asymmetric.unwrap_or(true) && of_group);
        }
        let block = blocks.first().copied();
        if let Some(block) = block
            && let Some(other) = blocks.iter().find(|other| **other != block)
        {
            let expected = format!("blocks of one size: {block:?} and {other:?} are not supported together");
            return Err(config.error("config_groups", &expected));
        }
        let bits = if bits == Bits(0) { Bits::ALL } else { bits };
        Ok(Self::CompressedTensors { block, bits, asymmetric: asymmetric.unwrap_or(false) })
    }

    fn fp8(config: &Fields, inverse: bool) -> Result<Self, LoadError> {
        Ok(Self::Fp8 { block: block(config, "weight_block_size")?, inverse })
    }

    fn of(config: &Fields, method: Option<&str>) -> Result<Option<Found>, LoadError> {
        let refuse =
            |method: String| Err(LoadError::Quantised { path: config.path().to_owned(), method, supported: SUPPORTED });
        let method = match method {
            // ModelOpt's own file has none, and all else one level deeper.
            None if config.has("quantization") => Some("modelopt"),
            None if ["load_in_4bit", "load_in_8bit"].iter().any(|name| config.has(name)) => Some("bitsandbytes"),
            method => method,
        };
        // GPTQModel's and AutoRound's, of which tensors alone say nothing.
        if let Some(name) = ["rotation", "rotation_config"].into_iter().find(|name| asks(config, name)) {
            return refuse(format!("{}'s {name} of activations", method.unwrap_or("unknown method")));
        }
        if let Some(format) = sparse(config) {
            return refuse(format!("{}'s sparsity_config {format}", method.unwrap_or("unknown method")));
        }
        let found = match method {
            // Transformers' on Macs.
            Some("metal") => Self::Mlx,
            // MLX writes the same under both names, and no method.
            None if config.has("group_size") => match config.string("mode")? {
                None | Some("affine" | "mxfp4" | "mxfp8" | "nvfp4") => Self::Mlx,
                Some(mode) => return refuse(format!("MLX's mode {mode}")),
            },
            Some("modelopt" | "modelopt_fp4" | "modelopt_mxfp8" | "modelopt_mixed") => {
                match modelopt::algorithm(config)?.as_deref() {
                    // Caches alone are quantised.
                    None => return Ok(None),
                    Some(known) if modelopt::ALGORITHMS.contains(&known) => Self::ModelOpt,
                    Some(other) => return refuse(format!("modelopt's quant_algo {other}")),
                }
            }
            Some("compressed-tensors") if rotates_activations(config)? => {
                return refuse("compressed-tensors' transform_config of activations".to_owned());
            }
            // Each matrix's tensors say which it is.
            Some("compressed-tensors") => match config.string("format")? {
                Some(
                    "pack-quantized"
                    | "float-quantized"
                    | "int-quantized"
                    | "naive-quantized"
                    | "nvfp4-pack-quantized"
                    | "mxfp4-pack-quantized"
                    | "mxfp8-quantized"
                    | "mixed-precision",
                ) => Self::compressed_tensors(config)?,
                // Caches alone are quantised.
                Some("dense") => return Ok(None),
                format => return refuse(format!("compressed-tensors' format {}", format.unwrap_or("(absent)"))),
            },
            Some("awq") => match (config.string("version")?, config.string("pack_method")?) {
                // Quark's: symmetric codes have a sign.
                (_, Some("reorder")) if config.boolean("zero_point")? == Some(false) => {
                    return refuse("awq's pack_method reorder without zero points".to_owned());
                }
                (None | Some("gemm" | "GEMM"), None | Some("reorder")) => Self::Awq,
                (None | Some("gemm" | "GEMM"), Some(order)) => return refuse(format!("awq's pack_method {order}")),
                (Some(version), _) => return refuse(format!("awq's version {version}")),
            },
            Some("gptq") if config.boolean("is_marlin_format")? == Some(true) => {
                return refuse("gptq's checkpoint_format marlin".to_owned());
            }
            Some("gptq") => {
                // GPTQModel calls it by both names.
                let format = config.string("checkpoint_format")?.or(config.string("format")?);
                let less = match format {
                    None | Some("gptq") => 1,
                    Some("gptq_v2") => 0,
                    Some(format) => return refuse(format!("gptq's checkpoint_format {format}")),
                };
                let ordered = config.boolean("desc_act")?.unwrap_or(false);
                Self::Gptq { less, group_size: gptq_group_size(config)?, alike: true, ordered }
            }
            // AutoRound has no packing of its own.
            Some(AUTO_ROUND) => match config.string("packing_format")? {
                None if config.string("data_type")? == Some("fp") => Self::fp8(config, false)?,
                // It names floats so, too.
                Some("auto_round") if !matches!(config.string("data_type")?, None | Some("int")) => {
                    let data_type = config.string("data_type")?.unwrap_or_default();
                    return refuse(format!("auto-round's packing_format auto_round of data_type {data_type}"));
                }
                // What it is in vLLM, too, if nothing says it; the last two have their zero points as they are.
                packing @ (None | Some("auto_round:auto_gptq" | "auto_round:gptqmodel" | "auto_round")) => {
                    // Layers that differ say so by their shapes.
                    let alike = config.object("extra_config")?.is_none_or(|of_it| of_it.names().next().is_none());
                    let less = u8::from(matches!(packing, None | Some("auto_round:auto_gptq")));
                    Self::Gptq { less, group_size: gptq_group_size(config)?, alike, ordered: false }
                }
                Some("auto_round:auto_awq") => Self::Awq,
                Some("mlx") => Self::Mlx,
                // Rounded and written as floats.
                Some("auto_round:fake") => return Ok(None),
                Some("auto_round:fp8" | "auto_round:fp8_static") => Self::fp8(config, false)?,
                Some("auto_round:llm_compressor") => Self::compressed_tensors(config)?,
                format => return refuse(format!("auto-round's packing_format {}", format.unwrap_or("(absent)"))),
            },
            // GPTQModel's are what their name says.
            Some("fp8") => match config.string("weight_scale_semantics")? {
                None => Self::fp8(config, false)?,
                Some("inverse") => Self::fp8(config, true)?,
                Some(other) => return refuse(format!("fp8's weight_scale_semantics {other}")),
            },
            Some("mxfp4") => Self::Mxfp4,
            Some("gguf") => Self::Gguf,
            method => return refuse(method.unwrap_or("unknown method").to_owned()),
        };
        Ok(Some(Found { method: found, name: if method == Some(AUTO_ROUND) { AUTO_ROUND } else { found.name() } }))
    }
}

/// Whether a field says that something is to be done.
fn asks(config: &Fields, name: &str) -> bool {
    match config.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

/// How compressed-tensors leaves out zeros, if it does.
fn sparse(config: &Fields) -> Option<&str> {
    let format = config.get("sparsity_config")?.get("format")?.as_str()?;
    (format != "dense").then_some(format)
}

/// Whether a step would have to rotate what compressed-tensors' matrices read or write. Those that were rotated themselves (SpinQuant's R1 and R2)
/// are computed as they are.
fn rotates_activations(config: &Fields) -> Result<bool, LoadError> {
    let Some(transforms) = config.object("transform_config")? else { return Ok(false) };
    let Some(Value::Object(groups)) = transforms.get("config_groups") else {
        return Ok(transforms.names().next().is_some());
    };
    let is_of_weights = |place: &Value| place["location"].as_str().is_some_and(|at| at.starts_with("weight_"));
    let are_of_weights = |group: &Value| group["apply"].as_array().is_some_and(|apply| apply.iter().all(is_of_weights));
    Ok(!groups.values().all(are_of_weights))
}

/// Rows and columns that share a scale where blocks do.
pub(crate) type Block = [usize; 2];

/// Where config.json does not say it.
const BLOCK: Block = [128, 128];

/// Those that a field names.
fn block(config: &Fields, field: &str) -> Result<Block, LoadError> {
    const MOST: usize = 1 << 20;
    let size = |size: &Value| usize::try_from(size.as_u64()?).ok();
    let sizes: Option<Vec<usize>> = match config.get(field) {
        None => return Ok(BLOCK),
        // As compressed-tensors had it first.
        Some(Value::String(text)) => text.split('x').map(|size| size.parse().ok()).collect(),
        Some(value) => value.as_array().and_then(|sizes| sizes.iter().map(size).collect()),
    };
    match sizes.as_deref() {
        Some(&[rows, cols]) if (1..=MOST).contains(&rows) && (1..=MOST).contains(&cols) && cols % 8 == 0 => {
            Ok([rows, cols])
        }
        _ => Err(config.error(field, "rows and columns of a block, the latter a multiple of 8")),
    }
}

/// Numbers of bits that codes of a checkpoint may have: bit `n` for `n` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bits(u16);

impl Bits {
    const ALL: Self = Self(u16::MAX);

    /// With so many, where that is a number of bits.
    fn with(self, bits: Option<usize>) -> Self {
        Self(self.0 | bits.filter(|bits| *bits <= 8).map_or(0, |bits| 1 << bits))
    }

    fn have(self, bits: usize) -> bool {
        self.0 >> bits & 1 == 1
    }
}

/// Columns of a group, whole rows being more than there are; `None` if config.json does not say it.
fn gptq_group_size(config: &Fields) -> Result<Option<usize>, LoadError> {
    const FIELD: &str = "group_size";
    match config.get(FIELD).and_then(Value::as_i64) {
        Some(-1) => Ok(Some(usize::MAX)),
        _ => config.size(FIELD).map_err(|_| config.error(FIELD, "the columns of a group, or -1 for whole rows")),
    }
}

/// An expert, where all of them are one tensor.
#[derive(Clone, Copy)]
pub(crate) struct Expert {
    pub(crate) number: usize,
    pub(crate) of: usize,
}

/// What a matrix is asked for by: its name without `.weight`, and the shape that the configuration asks for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) expert: Option<Expert>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Checkpoint {
    /// A matrix.
    pub(crate) fn matrix(&self, wanted: Wanted<'_>) -> Result<Matrix<'_>, LoadError> {
        let codes = match self.method {
            None => None,
            Some(Method::Mlx) => self.mlx(wanted)?,
            Some(Method::CompressedTensors { block, bits, asymmetric }) => {
                self.compressed(wanted, block, bits, asymmetric)?
            }
            Some(Method::Awq) => self.awq(wanted)?,
            Some(Method::Gptq { less, group_size, alike, ordered }) => {
                self.gptq(wanted, less, (group_size, alike), ordered)?
            }
            Some(Method::Fp8 { block, inverse }) => self.fp8(wanted, block, inverse)?,
            Some(Method::ModelOpt) => self.modelopt(wanted)?,
            Some(Method::Mxfp4) => self.mxfp4(wanted)?,
            Some(Method::Gguf) => return self.gguf(wanted),
        };
        match codes {
            Some(codes) => Ok(Matrix::Codes(codes)),
            None => Ok(Matrix::Float(self.float_matrix(wanted)?)),
        }
    }

    /// The tensor `name` with `suffix` of a matrix, if there is one.
    fn part<'a>(&'a self, wanted: Wanted<'_>, suffix: &str) -> Option<View<'a>> {
        self.view(&format!("{}.{suffix}", wanted.name), wanted.expert)
    }

    /// An error about a tensor that is not there.
    fn missing(&self, wanted: Wanted<'_>, suffix: &str) -> LoadError {
        let tensor = self.in_file(&format!("{}.{suffix}", wanted.name));
        LoadError::MissingTensor { path: self.weights_path(), tensor }
    }

    /// The same, of this type and shape.
    fn typed(&self, wanted: Wanted<'_>, suffix: &str, dtype: Dtype, shape: &[usize]) -> Result<&[u8], LoadError> {
        let view = self.part(wanted, suffix).ok_or_else(|| self.missing(wanted, suffix))?;
        match view.dtype == dtype && view.shape == shape {
            true => Ok(view.bytes),
            false => Err(self.unpackable(&view, &format!("{dtype:?} of shape {shape:?}"))),
        }
    }

    /// An error about a tensor of a quantised matrix.
    fn unpackable(&self, view: &View<'_>, expected: &str) -> LoadError {
        let got = format!("{:?} of shape {:?}", view.dtype, view.shape);
        LoadError::Packing { path: self.weights_path(), tensor: view.name.clone(), got, expected: expected.to_owned() }
    }

    /// The type of scales, which must be floats.
    fn scale_type(&self, scales: &View<'_>) -> Result<DType, LoadError> {
        float_type(scales.dtype).ok_or_else(|| self.unpackable(scales, "BF16, F16 or F32"))
    }
}

/// Values of groups: of each row and group one, or of several the same.
#[derive(Clone, Copy)]
struct Grid<'a> {
    /// What holds each.
    dtype: DType,
    /// Whether a byte is all there is of each: the exponent of a power of two.
    exponents: bool,
    bytes: &'a [u8],
    /// Rows, and groups, that have a value together.
    shared: [usize; 2],
    /// Values from one row of them to the next, and from one group to the next.
    strides: [usize; 2],
}

impl Grid<'_> {
    /// The number of a row's and group's value.
    fn index(&self, row: usize, group: usize) -> usize {
        row / self.shared[0] * self.strides[0] + group / self.shared[1] * self.strides[1]
    }

    fn at(&self, row: usize, group: usize) -> f32 {
        let at = self.index(row, group);
        if self.exponents {
            return match self.bytes[at] {
                0 => f32::MIN_POSITIVE / 2.0,
                u8::MAX => f32::NAN,
                exponent => f32::from_bits(u32::from(exponent) << 23),
            };
        }
        let bytes = &self.bytes[at * self.dtype.size()..][..self.dtype.size()];
        match self.dtype {
            DType::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }
}

/// Code `index` of a stream of codes of `bits` bits, the first in the lowest bits.
fn code_at(bytes: &[u8], index: usize, bits: usize) -> u8 {
    let (byte, shift) = (index * bits / 8, index * bits % 8);
    let next = if shift + bits > 8 { bytes[byte + 1] } else { 0 };
    let both = u16::from_le_bytes([bytes[byte], next]) >> shift;
    both as u8 & (u8::MAX >> (8 - bits))
}

/// The same of a stream in words of 32 bits that may lie apart.
fn code_of_words(word: impl Fn(usize) -> u32, index: usize, bits: usize) -> u8 {
    let (first, shift) = (index * bits / 32, index * bits % 32);
    let next = if shift + bits > 32 { u64::from(word(first + 1)) << 32 } else { 0 };
    ((u64::from(word(first)) | next) >> shift) as u8 & (u8::MAX >> (8 - bits))
}

/// Number `index` of words.
fn word_at(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks().0.get(index).map_or(0, |&word| u32::from_le_bytes(word))
}

/// How wide groups of `cols` elements are if a row has `groups` of them: `None` if that does not come out even, or is not what kernels take.
/// Those are groups of a multiple of 8 elements, or whole rows.
fn group_size(cols: usize, groups: usize) -> Option<usize> {
    let size = cols.checked_div(groups)?;
    (size * groups == cols && (groups == 1 || size.is_multiple_of(8))).then_some(size)
}

/// What [`group_size`] and the bits allow, for errors.
const GROUPS: &str = "as many as groups of 8, 16, 24 … columns, or one for each row";

/// Scales of groups that have zero points. Others than kernels take them for are of whole rows: their biases cost little.
fn with_zero_points(dtype: DType, group_size: usize) -> Scales {
    let scales = Scales::ZeroPoints(dtype);
    if scales.fit(group_size) { scales } else { Scales::Float(DType::F32) }
}

fn codes<'a>(
    wanted: Wanted<'_>,
    spelling: crate::load::matrix::Spelling,
    groups: impl vllm_apple_ops::ReadGroups + 'a,
) -> Codes<'a> {
    let (name, groups) = (wanted.name.to_owned(), Box::new(groups));
    Codes { name, rows: wanted.rows, cols: wanted.cols, spelling, order: None, groups }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_cross_bytes_are_read_whole() {
        for bits in 1..=8usize {
            let codes: Vec<u8> = (0..24).map(|i| (i * 29 + 7) as u8 & (u8::MAX >> (8 - bits))).collect();
            let mut bytes = vec![0u8; 24 * bits / 8];
            for (i, code) in codes.iter().enumerate() {
                (0..bits)
                    .filter(|bit| code >> bit & 1 == 1)
                    .for_each(|bit| bytes[(i * bits + bit) / 8] |= 1 << ((i * bits + bit) % 8));
            }
            assert_eq!((0..24).map(|i| code_at(&bytes, i, bits)).collect::<Vec<_>>(), codes, "{bits} bits");
            bytes.resize(24, 0);
            let of_words = |i| code_of_words(|word| word_at(&bytes, word), i, bits);
            assert_eq!((0..24).map(of_words).collect::<Vec<_>>(), codes, "{bits} bits");
        }
    }
}
