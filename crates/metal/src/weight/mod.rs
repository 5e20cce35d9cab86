//! Weights as the kernels read them: rows of a checkpoint, in the mapped file where that can be, else copied; or codes, laid out anew. It knows
//! no op.

pub(crate) mod checkpoint_memory;
pub(crate) mod codes;

use std::ops::Range;
use std::sync::Arc;

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{DType, Error, HostTensor, MappedFile, Parts, Result, Weight, WeightFormat, WeightSource};

use crate::gpu::{Gpu, Value};
use crate::recorder::Recorder;
use crate::recorder::region::Region;
use checkpoint_memory::{CheckpointMemory, Why};

/// Most arrays of rows that a kernel takes: q, k and v.
const MAX_PARTS: usize = 3;
/// What arrays must be aligned to. The data of a safetensors file begins at a multiple of 8 bytes.
const ALIGNMENT: usize = 8;
/// What begins at a multiple of this is read with the widest loads.
const WIDEST_LOAD: usize = 16;

/// A weight `[groups, rows, cols]`: per group up to three arrays of rows, in row-major order, one after the other; or codes.
pub struct PackedWeight<G: Gpu> {
    /// Of a single group, its arrays, the first repeated where there are fewer; of several, or of codes, the memory of all three times.
    pub(crate) parts: [Region<G>; MAX_PARTS],
    /// Of several groups of rows: u32 `[groups, 3]`, where a group's arrays begin in that memory, in units of [`ALIGNMENT`] bytes.
    pub(crate) offsets: Option<Region<G>>,
    /// Of the activations, and of the elements of rows.
    pub(crate) dtype: DType,
    form: Form,
}

/// What is in the memory.
#[derive(Debug, Clone, Copy)]
enum Form {
    Rows {
        /// First rows of the second and of the third array; the number of rows if there is none.
        first_rows: [usize; MAX_PARTS - 1],
        /// Bytes that all arrays' addresses are a multiple of.
        alignment: usize,
    },
    Codes(codes::Layout),
}

impl<G: Gpu> PackedWeight<G> {
    /// Another handle of the same weight.
    pub(crate) fn handle(&self) -> Self {
        Self { parts: self.parts.clone(), offsets: self.offsets.clone(), ..*self }
    }

    /// How codes lie there, if it is codes.
    pub(crate) fn codes(&self) -> Option<&codes::Layout> {
        match &self.form {
            Form::Rows { .. } => None,
            Form::Codes(layout) => Some(layout),
        }
    }

    /// Where the second and the third array begin.
    pub(crate) fn first_rows(weight: &Weight<Self>) -> [usize; MAX_PARTS - 1] {
        match weight.packed().form {
            Form::Rows { first_rows, .. } => first_rows,
            Form::Codes(_) => [weight.rows(); MAX_PARTS - 1],
        }
    }

    /// `[[function_constant(0)]]` to `[[function_constant(4)]]` of `weight.metal`.
    pub(crate) fn constants(weight: &Weight<Self>) -> [Value; 5] {
        let packed = weight.packed();
        let load = match packed.form {
            Form::Rows { alignment, .. } => load_bytes(weight.cols(), packed.dtype, alignment),
            Form::Codes(_) => WIDEST_LOAD,
        };
        let [part1, part2] = Self::first_rows(weight);
        [weight.cols(), weight.rows(), load, part1, part2].map(|v| Value::U32(v as u32))
    }

    /// `[[function_constant(11)]]` to `[[function_constant(16)]]` of `codes.metal`; zeros for rows.
    pub(crate) fn code_constants(&self) -> [Value; 6] {
        self.codes().map_or([Value::U32(0); 6], codes::Layout::constants)
    }

    /// Bytes of a group's matrix of this size.
    pub(crate) fn bytes(weight: &Weight<Self>) -> usize {
        let (rows, cols, packed) = (weight.rows(), weight.cols(), weight.packed());
        packed.codes().map_or(rows * cols * packed.dtype.size(), |layout| layout.matrix_bytes(rows, cols))
    }
}

/// The widest loads, in bytes, that fit rows of `cols` elements in memory of this alignment.
pub(crate) fn load_bytes(cols: usize, dtype: DType, alignment: usize) -> usize {
    1 << ((cols * dtype.size()) | alignment).trailing_zeros()
}

/// See [`vllm_apple_ops::Backend::weight_bytes`].
pub(crate) fn bytes(format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
    groups as u128
        * match format {
            WeightFormat::Float(_) => format.bytes(rows, cols),
            WeightFormat::Quantised(quantised) => codes::Layout::new(quantised, cols).matrix_bytes(rows, cols) as u128,
        }
}

/// See [`vllm_apple_ops::Backend::load_weight`].
pub(crate) fn load<G: Gpu>(
    recorder: &Recorder<G>,
    pool: &Pool,
    checkpoints: &CheckpointMemory<G>,
    source: WeightSource<'_>,
    format: WeightFormat,
) -> Result<Weight<PackedWeight<G>>> {
    let (rows, cols) = source.check(format)?;
    let WeightSource { name, groups, parts } = source;
    let loader = Loader { recorder, checkpoints, name, dtype: format.input() };
    let packed = match (parts, format) {
        (Parts::Float(parts), _) if groups == 1 => loader.matrix(rows, parts)?,
        (Parts::Float(parts), _) => loader.matrices(rows, groups, parts)?,
        (Parts::Quantised(parts), WeightFormat::Quantised(quantised)) => {
            let layout = codes::Layout::new(quantised, cols);
            let packer = codes::Packer { layout, rows, cols, parts_per_group: parts.len() / groups, parts };
            let region = recorder.region(groups * layout.matrix_bytes(rows, cols), &format!("weight {name}"))?;
            let mut refused = None;
            loader.fill(&region, |bytes| refused = packer.pack(pool, bytes));
            if let Some(value) = refused {
                return Err(Error::ScaleOutOfRange { name: name.into(), value, dtype: quantised.scales.dtype() });
            }
            checkpoints.count(region.len, Some(Why::Codes));
            let parts = std::array::from_fn(|_| region.clone());
            PackedWeight { parts, offsets: None, dtype: quantised.input, form: Form::Codes(layout) }
        }
        (Parts::Quantised(_), WeightFormat::Float(_)) => unreachable!("the source has been checked"),
    };
    Ok(Weight::new(packed, format, groups, rows, cols))
}

struct Loader<'a, G: Gpu> {
    recorder: &'a Recorder<G>,
    checkpoints: &'a CheckpointMemory<G>,
    name: &'a str,
    dtype: DType,
}

impl<G: Gpu> Loader<'_, G> {
    /// A single matrix. Each part stays in place if it can.
    fn matrix(&self, rows: usize, parts: &[HostTensor<'_>]) -> Result<PackedWeight<G>> {
        let mut arrays = Vec::with_capacity(MAX_PARTS);
        if parts.len() > MAX_PARTS {
            arrays.push(self.copy(1, parts, Why::Parts)?);
        } else {
            for part in parts {
                arrays.push(match self.in_place(part)? {
                    Ok(region) => {
                        self.checkpoints.count(region.len, None);
                        region
                    }
                    Err(why) => self.copy(1, std::slice::from_ref(part), why)?,
                });
            }
        }
        let form = Form::Rows {
            first_rows: first_rows(rows, &parts[..if arrays.len() < parts.len() { 1 } else { parts.len() }]),
            alignment: alignment(arrays.iter().map(|array| array.offset)),
        };
        Ok(PackedWeight {
            form,
            parts: std::array::from_fn(|i| arrays.get(i).unwrap_or(&arrays[0]).clone()),
            dtype: self.dtype,
            offsets: None,
        })
    }

    /// Several matrices. They stay in place if all their parts can, in one file.
    fn matrices(&self, rows: usize, groups: usize, parts: &[HostTensor<'_>]) -> Result<PackedWeight<G>> {
        let (memory, starts) = match self.all_in_place(groups, parts)? {
            Ok(found) => {
                self.checkpoints.count(parts.iter().map(|part| part.bytes.len()).sum(), None);
                found
            }
            Err(why) => {
                let memory = self.copy(groups, parts, why)?;
                let starts = (0..groups).map(|group| group * (memory.len / groups)).collect();
                (memory, starts)
            }
        };
        let arrays = starts.len() / groups;
        let table: Vec<u32> = starts
            .chunks(arrays)
            .flat_map(|starts| (0..MAX_PARTS).map(|i| (starts.get(i).unwrap_or(&starts[0]) / ALIGNMENT) as u32))
            .collect();
        let offsets = self.recorder.region(table.len() * 4, &format!("offsets of {}", self.name))?;
        self.fill(&offsets, |bytes| bytes.copy_from_slice(bytemuck::cast_slice(&table)));
        let form = Form::Rows {
            first_rows: first_rows(rows, &parts[..arrays]),
            alignment: alignment(starts.iter().map(|start| memory.offset + start)),
        };
        Ok(PackedWeight {
            form,
            parts: std::array::from_fn(|_| memory.clone()),
            dtype: self.dtype,
            offsets: Some(offsets),
        })
    }

    /// The memory that spans all parts, which are of one file, and where each begins in it.
    fn all_in_place(&self, groups: usize, parts: &[HostTensor<'_>]) -> Result<InPlace<(Region<G>, Vec<usize>)>> {
        if parts.len() / groups > MAX_PARTS {
            return Ok(Err(Why::Parts));
        }
        let places: Vec<_> = match parts.iter().map(|part| self.place(part)).collect() {
            Ok(places) => places,
            Err(why) => return Ok(Err(why)),
        };
        let file = places[0].0;
        let start = places.iter().map(|(_, place)| place.start).min().unwrap_or(0);
        let end = places.iter().map(|(_, place)| place.end).max().unwrap_or(0);
        if places.iter().any(|(other, _)| !Arc::ptr_eq(file, other)) || (end - start) / ALIGNMENT > u32::MAX as usize {
            return Ok(Err(Why::Files));
        }
        let starts = places.iter().map(|(_, place)| place.start - start).collect();
        let region = self.checkpoints.region(self.recorder, file, &(start..end))?;
        Ok(region.map(|region| (region, starts)).ok_or(Why::Device))
    }

    /// A part in the memory of the mapped file, or why not.
    fn in_place(&self, part: &HostTensor<'_>) -> Result<InPlace<Region<G>>> {
        match self.place(part) {
            Ok((file, place)) => Ok(self.checkpoints.region(self.recorder, file, &place)?.ok_or(Why::Device)),
            Err(why) => Ok(Err(why)),
        }
    }

    /// A part's file and where it is there, if it may be used as it is.
    fn place<'t>(&self, part: &HostTensor<'t>) -> InPlace<(&'t Arc<dyn MappedFile>, Range<usize>)> {
        let Some(file) = part.file else { return Err(Why::NoFile) };
        let start = part.bytes.as_ptr().addr().wrapping_sub(file.bytes().as_ptr().addr());
        assert!(
            start < file.bytes().len() && part.bytes.len() <= file.bytes().len() - start,
            "a tensor lies in its file"
        );
        if part.dtype != self.dtype {
            return Err(Why::Converted);
        }
        if !start.is_multiple_of(ALIGNMENT) {
            return Err(Why::Alignment);
        }
        Ok((file, start..start + part.bytes.len()))
    }

    /// Converts the parts to one memory, in which every group begins at a multiple of [`WIDEST_LOAD`].
    fn copy(&self, groups: usize, parts: &[HostTensor<'_>], why: Why) -> Result<Region<G>> {
        let size = |part: &HostTensor<'_>| part.rows * part.cols * self.dtype.size();
        let per_group = parts.len() / groups;
        let stride = parts[..per_group].iter().map(size).sum::<usize>();
        let stride = if groups == 1 { stride } else { stride.next_multiple_of(WIDEST_LOAD) };
        let region = self.recorder.region(groups * stride, &format!("weight {}", self.name))?;
        let mut overflow = None;
        self.fill(&region, |bytes| {
            for (bytes, parts) in bytes.chunks_exact_mut(stride).zip(parts.chunks(per_group)) {
                let mut at = 0;
                for part in parts {
                    overflow = overflow.or(convert(part, self.dtype, &mut bytes[at..][..size(part)]));
                    at += size(part);
                }
            }
        });
        self.checkpoints.count(region.len, Some(why));
        match overflow {
            Some(value) => Err(Error::OutOfRange { name: self.name.into(), value, dtype: self.dtype }),
            None => Ok(region),
        }
    }

    /// Writes to memory that was just allocated.
    fn fill(&self, region: &Region<G>, write: impl FnOnce(&mut [u8])) {
        // SAFETY: nobody else has seen this memory yet, neither the host nor a command.
        let bytes = unsafe { self.recorder.gpu.bytes_mut(&region.buffer) };
        write(&mut bytes[region.offset..][..region.len]);
    }
}

/// What is used where it is, or why it cannot be.
type InPlace<T> = std::result::Result<T, Why>;

/// Where the second and the third array begin.
fn first_rows(rows: usize, arrays: &[HostTensor<'_>]) -> [usize; MAX_PARTS - 1] {
    std::array::from_fn(|i| match i + 1 < arrays.len() {
        true => arrays[..=i].iter().map(|array| array.rows).sum(),
        false => rows,
    })
}

/// The alignment of addresses that are all aligned to [`ALIGNMENT`], as far as it matters.
fn alignment(mut offsets: impl Iterator<Item = usize>) -> usize {
    if offsets.all(|offset| offset.is_multiple_of(WIDEST_LOAD)) { WIDEST_LOAD } else { ALIGNMENT }
}

/// Writes a tensor's elements as `to`; returns the first finite value that became infinite, if any.
fn convert(tensor: &HostTensor<'_>, to: DType, out: &mut [u8]) -> Option<f32> {
    if tensor.dtype == to {
        out.copy_from_slice(tensor.bytes);
        return None;
    }
    let mut overflow = None;
    let rows = tensor.bytes.chunks(tensor.cols * tensor.dtype.size());
    for (row, out) in rows.zip(out.chunks_mut(tensor.cols * to.size())) {
        let values = tensor.dtype.decode(row);
        let lost = |v: &&f32| v.is_finite() && to.round(**v).is_infinite();
        overflow = overflow.or_else(|| values.iter().find(lost).copied());
        out.copy_from_slice(&to.encode(&values));
    }
    overflow
}

/// A row of a weight, for computations on the host.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    Floats(DType, &'a [u8]),
    /// Of a tile of codes, number `row`.
    Codes {
        layout: codes::Layout,
        tile: &'a [u8],
        row: usize,
        cols: usize,
    },
}

impl Row<'_> {
    /// Its elements.
    pub(crate) fn values(self) -> Vec<f32> {
        match self {
            Self::Floats(dtype, bytes) => dtype.decode(bytes),
            Self::Codes { layout, tile, row, cols } => layout.row(tile, row, cols),
        }
    }
}

/// Output `row` of matrix `group`.
pub(crate) fn row<'a, G: Gpu>(
    recorder: &Recorder<G>,
    weight: &'a Weight<PackedWeight<G>>,
    group: usize,
    row: usize,
) -> Row<'a> {
    let PackedWeight { parts, offsets, form, dtype } = weight.packed();
    let (rows, cols) = (weight.rows(), weight.cols());
    let [second, third] = match *form {
        Form::Rows { first_rows, .. } => first_rows,
        Form::Codes(layout) => {
            let matrix = &recorder.bytes(&parts[0])[group * layout.matrix_bytes(rows, cols)..];
            let size = layout.tile_bytes(cols);
            let tile = &matrix[row / codes::TILE_ROWS * size..][..size];
            return Row::Codes { layout, tile, row: row % codes::TILE_ROWS, cols };
        }
    };
    let (part, first) = match row {
        row if row >= third => (2, third),
        row if row >= second => (1, second),
        _ => (0, 0),
    };
    let start = offsets.as_ref().map_or(0, |offsets| {
        let table: &[u32] = bytemuck::cast_slice(recorder.bytes(offsets));
        table[group * MAX_PARTS + part] as usize * ALIGNMENT
    });
    let bytes = cols * dtype.size();
    Row::Floats(*dtype, &recorder.bytes(&parts[part])[start + (row - first) * bytes..][..bytes])
}

#[cfg(test)]
mod tests;
