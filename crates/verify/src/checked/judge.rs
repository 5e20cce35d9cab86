//! An op's outputs beside its reference: the row that is furthest off, of those that are looked at.

use std::ops::Range;
use std::sync::Mutex;

use vllm_apple_ops::conformance::{
    AttentionRow, Judged, judge, magnitude, norm_roundoffs, product_roundoffs, tolerance,
};
use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::*;

use super::log::{Finding, Place, hash};
use crate::host_weight::HostWeight;
use crate::reference::{Requests, Visible, dot, floats, integers};

/// Rows of products and of attention that are looked at: they cost as much as the model.
const FEW: usize = 12;
/// Of the other ops.
const MANY: usize = 256;

/// Looks at a backend's memory after an op.
pub(super) struct Judge<'a, B> {
    pub backend: &'a B,
    pub pool: &'a Pool,
    /// Otherwise nothing is looked at.
    pub judging: bool,
}

/// The worst of some rows' findings.
fn worst(findings: impl Iterator<Item = Option<Finding>>) -> Option<Finding> {
    findings.flatten().max_by(|a, b| a.error().total_cmp(&b.error()))
}

fn finding(row: usize, judged: Option<Judged>, place: impl Fn(usize) -> Place) -> Option<Finding> {
    judged.map(|judged| Finding { row, place: place(judged.at), judged })
}

fn of_elements(row: usize, judged: Option<Judged>) -> Option<Finding> {
    finding(row, judged, Place::Element)
}

/// A row of products, and the magnitudes of their terms.
#[derive(Clone, Default)]
struct Products {
    want: Vec<f32>,
    sizes: Vec<f32>,
}

impl<B: Backend> Judge<'_, B> {
    /// The first, the last, and others evenly between them.
    fn sample(&self, rows: usize, most: usize) -> Vec<usize> {
        let count = if self.judging { rows.min(most) } else { 0 };
        (0..count).map(|i| if count > 1 { i * (rows - 1) / (count - 1) } else { 0 }).collect()
    }

    fn row(&self, tensor: &Tensor<B::Memory>, row: usize) -> Vec<f32> {
        let width = tensor.cols() * tensor.dtype().size();
        tensor.dtype().decode(&self.backend.read(tensor)[row * width..][..width])
    }

    pub fn embedding(&self, ids: &[u32], table: &HostWeight, scale: f32, out: &Tensor<B::Memory>) -> Option<Finding> {
        worst(self.sample(ids.len(), MANY).into_iter().map(|row| {
            let want: Vec<f32> = table.row(0, ids[row] as usize).iter().map(|value| value * scale).collect();
            of_elements(row, judge(&self.row(out, row), &want, 1.0, |_| 0.0))
        }))
    }

    pub fn norm(&self, x: &[f32], weight: &Tensor<B::Memory>, eps: f32, out: &Tensor<B::Memory>) -> Option<Finding> {
        let weight = floats(self.backend, weight, 1);
        let tolerance = tolerance(norm_roundoffs(weight.len()), out.dtype());
        worst(self.sample(x.len() / weight.len(), MANY).into_iter().map(|row| {
            let want = rms_norm::reference(&x[row * weight.len()..][..weight.len()], &weight, eps);
            of_elements(row, judge(&self.row(out, row), &want, tolerance, magnitude(&want, out.dtype())))
        }))
    }

    pub fn add_norm(
        &self,
        before: &[f32],
        delta: &Tensor<B::Memory>,
        weight: &Tensor<B::Memory>,
        eps: f32,
        residual: &Tensor<B::Memory>,
        out: &Tensor<B::Memory>,
    ) -> Option<Finding> {
        let hidden = residual.cols();
        let rows = before.len() / hidden;
        let added = worst(self.sample(rows, MANY).into_iter().map(|row| {
            let delta = self.row(delta, row);
            let want: Vec<f32> = before[row * hidden..][..hidden].iter().zip(&delta).map(|(r, d)| r + d).collect();
            of_elements(row, judge(&self.row(residual, row), &want, 1.0, |_| 0.0))
        }));
        let normed = self.norm(&floats(self.backend, residual, rows), weight, eps, out);
        worst([added, normed].into_iter())
    }

    /// The products of some rows of `x` with a matrix of `weight`.
    fn products(&self, rows: &[Vec<f32>], weight: &HostWeight, group: usize, bias: &[f32]) -> Vec<Products> {
        if rows.is_empty() {
            return Vec::new();
        }
        let n = weight.rows();
        let mut rows = rows.to_vec();
        rows.iter_mut().for_each(|row| weight.round(row));
        let magnitudes: Vec<Vec<f32>> = rows.iter().map(|row| row.iter().map(|x| x.abs()).collect()).collect();
        let columns = Mutex::new(vec![Vec::new(); n]);
        self.pool.run(n, &|i, _| {
            let (w, sizes) = (weight.row(group, i), weight.row_sizes(group, i));
            let bias = bias.get(i).map_or(0.0, |&bias| f64::from(bias));
            let of = |(row, magnitudes): (&Vec<f32>, &Vec<f32>)| {
                ((dot(row, &w) + bias) as f32, (dot(magnitudes, &sizes) + bias.abs()) as f32)
            };
            let column: Vec<(f32, f32)> = rows.iter().zip(&magnitudes).map(of).collect();
            columns.lock().expect("no thread has panicked")[i] = column;
        });
        let columns = columns.into_inner().expect("no thread has panicked");
        let of = |row: usize| {
            let (want, sizes) = columns.iter().map(|column| column[row]).unzip();
            Products { want, sizes }
        };
        (0..rows.len()).map(of).collect()
    }

    pub fn matmul(
        &self,
        rows: usize,
        x: &Tensor<B::Memory>,
        weight: &HostWeight,
        bias: Option<&Tensor<B::Memory>>,
        (out, columns): (&Tensor<B::Memory>, Range<usize>),
    ) -> Option<Finding> {
        let picked = self.sample(rows, FEW);
        let xs: Vec<Vec<f32>> = picked.iter().map(|&row| self.row(x, row)).collect();
        let bias = bias.map(|bias| floats(self.backend, bias, 1)).unwrap_or_default();
        let products = self.products(&xs, weight, 0, &bias);
        let tolerance = tolerance(product_roundoffs(x.cols()), DType::F32);
        worst(picked.into_iter().zip(products).map(|(row, Products { want, sizes })| {
            let got = &self.row(out, row)[columns.clone()];
            of_elements(row, judge(got, &want, tolerance, |i| f64::from(sizes[i])))
        }))
    }

    /// An output is off by what the products are, times how much the activation shows of it, and by the activation's own error.
    pub fn gated_matmul(
        &self,
        rows: usize,
        x: &Tensor<B::Memory>,
        weight: &HostWeight,
        bias: Option<&Tensor<B::Memory>>,
        activation: Activation,
        out: &Tensor<B::Memory>,
    ) -> Option<Finding> {
        /// The steepest that activations of gates are.
        const SLOPE: f64 = 1.13;
        let picked = self.sample(rows, FEW);
        let xs: Vec<Vec<f32>> = picked.iter().map(|&row| self.row(x, row)).collect();
        let bias = bias.map(|bias| floats(self.backend, bias, 1)).unwrap_or_default();
        let products = self.products(&xs, weight, 0, &bias);
        let (width, dtype) = (out.cols(), out.dtype());
        let of_products = tolerance(product_roundoffs(x.cols()), DType::F32);
        worst(picked.into_iter().zip(products).map(|(row, Products { want: gate_up, sizes })| {
            let want = gated_activation::reference(activation, &gate_up, width);
            let of_activation = activation_tolerance(activation, &gate_up, &want, dtype);
            let bound = |i: usize| {
                let (gate, up) = activation.operands(f64::from(gate_up[i]), f64::from(gate_up[width + i]));
                let [gate, up] = [gate, up].map(f64::abs);
                let [gate_size, up_size] = [i, width + i].map(|i| f64::from(sizes[i]));
                of_products * (SLOPE * gate_size * up + up_size * gate) + of_activation(i)
            };
            of_elements(row, judge(&self.row(out, row), &want, 1.0, bound))
        }))
    }

    pub fn gated_activation(
        &self,
        activation: Activation,
        gate_up: &[f32],
        out: &Tensor<B::Memory>,
    ) -> Option<Finding> {
        let width = out.cols();
        worst(self.sample(gate_up.len() / (2 * width), MANY).into_iter().map(|row| {
            let gate_up = &gate_up[row * 2 * width..][..2 * width];
            let want = gated_activation::reference(activation, gate_up, width);
            let bound = activation_tolerance(activation, gate_up, &want, out.dtype());
            of_elements(row, judge(&self.row(out, row), &want, 1.0, bound))
        }))
    }

    pub fn qk_norm(&self, before: &[f32], op: &QkNorm<'_, B::Memory>) -> Option<Finding> {
        let (q, k) = (floats(self.backend, op.q_weight, 1), floats(self.backend, op.k_weight, 1));
        let (width, head_dim) = (op.qkv.cols(), q.len());
        let tolerance = tolerance(norm_roundoffs(head_dim), DType::F32);
        let first_value = (op.num_heads + op.num_kv_heads) * head_dim;
        worst(self.sample(op.rows, MANY).into_iter().map(|row| {
            let before = &before[row * width..][..width];
            let want = qk_norm::reference(before, op.num_heads, op.num_kv_heads, &q, &k, op.eps);
            let size = magnitude(&want, DType::F32);
            let scale = |i: usize| if i < first_value { size(i) } else { 0.0 };
            finding(row, judge(&self.row(op.qkv, row), &want, tolerance, scale), |i| Place::Head(i / head_dim))
        }))
    }

    /// A rotated head beside what it should be.
    fn rotated(&self, got: &[f32], before: &[f32], [cos, sin]: [&[f32]; 2], dtype: DType) -> Option<Judged> {
        let (half, d) = (before.len() / 2, before.len());
        let want = rope::reference(before, cos, sin);
        let size =
            |i: usize| f64::from((before[i] * cos[i % half]).abs() + (before[(i + half) % d] * sin[i % half]).abs());
        judge(got, &want, tolerance(4.0, dtype), size)
    }

    fn rotation(&self, table: &RopeTable<B::Memory>, position: u32) -> [Vec<f32>; 2] {
        [&table.cos, &table.sin].map(|table| self.row(table, position as usize))
    }

    pub fn rope(&self, before: &[f32], op: &Rope<'_, B::Memory>) -> Option<Finding> {
        let (width, head_dim) = (op.q.cols(), 2 * op.table.cos.cols());
        let positions = integers(self.backend, op.positions, op.rows);
        worst(self.sample(op.rows, MANY).into_iter().flat_map(|row| {
            let (got, [cos, sin]) = (self.row(op.q, row), self.rotation(op.table, positions[row]));
            let of = |head: usize| {
                let [got, before] = [&got[..], &before[row * width..]].map(|x| &x[head * head_dim..][..head_dim]);
                finding(row, self.rotated(got, before, [&cos, &sin], DType::F32), |_| Place::Head(head))
            };
            (0..op.num_heads).map(of).collect::<Vec<_>>()
        }))
    }

    /// Also the bits of each row: queries, and what is in the cache at its slot.
    pub fn rope_kv_write(&self, before: &[f32], op: &RopeKvWrite<'_, B::Memory>) -> (Option<Finding>, Vec<u64>) {
        let KvSpec { dtype, num_kv_heads, head_dim, .. } = op.cache.spec;
        let (width, first_value) = (op.qkv.cols(), op.num_heads + num_kv_heads);
        let positions = integers(self.backend, op.positions, op.rows);
        let slots = integers(self.backend, op.slot_mapping, op.rows);
        let mut bits = Vec::with_capacity(op.rows);
        let picked = self.sample(op.rows, MANY);
        let of_row = |row: usize| {
            let got = self.row(op.qkv, row);
            let (keys, values) = self.backend.read_kv(op.cache, slots[row] as usize);
            let queries = &got[..op.num_heads * head_dim];
            bits.push(hash(bytemuck::cast_slice(&[queries, &keys, &values].concat())));
            if picked.binary_search(&row).is_err() {
                return None;
            }
            let [cos, sin] = self.rotation(op.table, positions[row]);
            let heads = before[row * width..][..width].chunks_exact(head_dim).enumerate();
            worst(heads.map(|(head, before)| {
                if head < op.num_heads {
                    let got = &queries[head * head_dim..][..head_dim];
                    let judged = self.rotated(got, before, [&cos, &sin], DType::F32);
                    finding(row, judged, |_| Place::Head(head))
                } else if head < first_value {
                    let head = head - op.num_heads;
                    let judged = self.rotated(&keys[head * head_dim..][..head_dim], before, [&cos, &sin], dtype);
                    finding(row, judged, |_| Place::Key(head))
                } else {
                    let head = head - first_value;
                    let want: Vec<f32> = before.iter().map(|&value| dtype.round(value)).collect();
                    let judged = judge(&values[head * head_dim..][..head_dim], &want, 1.0, |_| 0.0);
                    finding(row, judged, |_| Place::Value(head))
                }
            }))
        };
        let found: Vec<Option<Finding>> = (0..op.rows).map(of_row).collect();
        (worst(found.into_iter()), bits)
    }

    pub fn paged_attention(&self, op: &PagedAttention<'_, B::Memory>) -> Option<Finding> {
        let KvSpec { num_kv_heads, head_dim, block_size, .. } = op.cache.spec;
        let requests = Requests::new(self.backend, op.sequences, block_size);
        let tokens = requests.tokens();
        let group = op.num_heads / num_kv_heads;
        let mut caches = std::collections::BTreeMap::new();
        let picked = self.sample(tokens.len(), 2 * FEW);
        for &row in &picked {
            let (request, _) = tokens[row];
            caches.entry(request).or_insert_with(|| requests.visible(self.backend, op.cache, request));
        }
        let rows: Vec<[Vec<f32>; 2]> =
            picked.iter().map(|&row| [self.row(op.qkv, row), self.row(op.out, row)]).collect();
        let (num_heads, scale, window, dtype) = (op.num_heads, op.scale, op.window, op.out.dtype());
        let sinks = op.sinks.map(|sinks| floats(self.backend, sinks, 1));
        let found = Mutex::new(Vec::new());
        self.pool.run(picked.len(), &|i, _| {
            let (row, [qkv, got]) = (picked[i], &rows[i]);
            let (request, position) = tokens[row];
            for (head, got) in got.chunks_exact(head_dim).enumerate().take(num_heads) {
                let Visible { keys, values } = &caches[&request][head / group];
                let query = &qkv[head * head_dim..][..head_dim];
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                let error = AttentionRow { query, keys, values, position, scale, window, sink }.judge(got, dtype);
                let want = paged_attention::reference(query, keys, values, position, scale, window, sink);
                let judged = Judged { error, at: 0, got: got[0], want: want[0] };
                let finding = Finding { row, place: Place::Head(head), judged };
                found.lock().expect("no thread has panicked").push(Some(finding));
            }
        });
        worst(found.into_inner().expect("no thread has panicked").into_iter())
    }

    pub fn topk_softmax(&self, op: &TopkSoftmax<'_, B::Memory>) -> Option<Finding> {
        let (top_k, experts) = (op.ids.cols(), op.logits.cols());
        let ids = integers(self.backend, op.ids, op.rows * top_k);
        worst(self.sample(op.rows, MANY).into_iter().map(|row| {
            let logits = self.row(op.logits, row);
            let (want_ids, want) = topk_softmax::reference(&logits, top_k, op.renormalize);
            let ids = &ids[row * top_k..][..top_k];
            if let Some(at) = (0..top_k).find(|&i| ids[i] != want_ids[i]) {
                let judged = Judged { error: f64::INFINITY, at, got: ids[at] as f32, want: want_ids[at] as f32 };
                return of_elements(row, Some(judged));
            }
            let largest = logits.iter().fold(0.0_f32, |m, l| m.max(l.abs()));
            let roundoffs = 12.0 + 2.0 * f64::from(largest) + (experts as f64).sqrt();
            let tolerance = tolerance(roundoffs, DType::F32);
            of_elements(row, judge(&self.row(op.weights, row), &want, tolerance, magnitude(&want, DType::F32)))
        }))
    }

    pub fn grouped_matmul(&self, op: &GroupedMatmul<'_, B::Memory, B::Packed>, weight: &HostWeight) -> Option<Finding> {
        let ids = integers(self.backend, op.ids, op.tokens * op.ids.cols());
        let tolerance = tolerance(product_roundoffs(op.x.cols()), DType::F32);
        worst(self.sample(ids.len(), FEW).into_iter().map(|pair| {
            let (x, expert) = ([self.row(op.x, pair / op.pairs_per_row)], ids[pair] as usize);
            let bias = op.bias.map(|bias| self.row(bias, expert)).unwrap_or_default();
            let products = self.products(&x, weight, expert, &bias);
            let Products { want, sizes } = &products[0];
            let got = &self.row(op.out, pair)[op.first..][..want.len()];
            of_elements(pair, judge(got, want, tolerance, |i| f64::from(sizes[i])))
        }))
    }

    pub fn moe_combine(&self, op: &MoeCombine<'_, B::Memory>) -> Option<Finding> {
        let (top_k, hidden) = (op.weights.cols(), op.out.cols());
        let tolerance = tolerance(1.0 + 2.0 * top_k as f64, DType::F32);
        worst(self.sample(op.rows, MANY).into_iter().map(|row| {
            let x: Vec<f32> = (row * top_k..(row + 1) * top_k).flat_map(|pair| self.row(op.x, pair)).collect();
            let weights = self.row(op.weights, row);
            let want = moe_combine::reference(&x, &weights, top_k, hidden);
            let [x, weights] = [x, weights].map(|values| values.iter().map(|v| v.abs()).collect::<Vec<_>>());
            let sizes = moe_combine::reference(&x, &weights, top_k, hidden);
            of_elements(row, judge(&self.row(op.out, row), &want, tolerance, |i| f64::from(sizes[i])))
        }))
    }

    pub fn add_shared_expert(&self, before: &[f32], op: &AddSharedExpert<'_, B::Memory>) -> Option<Finding> {
        let hidden = op.out.cols();
        worst(self.sample(op.rows, MANY).into_iter().map(|row| {
            let (x, gate, before) = (self.row(op.x, row), self.row(op.gate, row), &before[row * hidden..][..hidden]);
            let want = add_shared_expert::reference(&x, &gate, before);
            let size = |i: usize| f64::from(x[i].abs()) + f64::from(before[i].abs());
            of_elements(row, judge(&self.row(op.out, row), &want, tolerance(8.0, DType::F32), size))
        }))
    }

    pub fn gather_rows(&self, op: &GatherRows<'_, B::Memory>) -> Option<Finding> {
        let indices = integers(self.backend, op.indices, op.rows);
        worst(self.sample(op.rows, MANY).into_iter().map(|row| {
            let want = self.row(op.x, indices[row] as usize);
            of_elements(row, judge(&self.row(op.out, row), &want, 1.0, |_| 0.0))
        }))
    }

    pub fn permute_columns(&self, op: &PermuteColumns<'_, B::Memory>) -> Option<Finding> {
        let (cols, top_k) = (op.x.cols(), op.top_k());
        let order = integers(self.backend, op.order, op.order.rows() * cols);
        let ids = op.ids.map(|ids| integers(self.backend, ids, op.rows * top_k));
        worst(self.sample(op.rows * top_k, MANY).into_iter().map(|row| {
            let id = ids.as_ref().map_or(0, |ids| ids[row]);
            let want = permute_columns::reference(&self.row(op.x, row / top_k), &order, cols, &[id]);
            of_elements(row, judge(&self.row(op.out, row), &want, 1.0, |_| 0.0))
        }))
    }
}

/// What an activation's output may be off by.
fn activation_tolerance<'a>(
    activation: Activation,
    gate_up: &'a [f32],
    want: &'a [f32],
    dtype: DType,
) -> impl Fn(usize) -> f64 + 'a {
    let (tolerance, size) = (tolerance(10.0, dtype), magnitude(want, dtype));
    move |i| {
        // The sigmoid of a positive argument hardly moves with it.
        let amplified = match activation {
            Activation::Silu => 1.0,
            Activation::GeluTanh | Activation::ClampedSwiglu => {
                1.0 + (-activation.argument(f64::from(gate_up[i]))).max(0.0)
            }
        };
        tolerance * amplified * size(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_the_worst() {
        // Of either sign: processors differ in that.
        for nan in [f64::NAN, -f64::NAN] {
            let findings = [0.5, nan, 7.0].into_iter().enumerate().map(|(row, error)| {
                let judged = Judged { error, at: 0, got: 1.0, want: 1.0 };
                Some(Finding { row, place: Place::Element(0), judged })
            });
            let worst = worst(findings).unwrap();
            assert_eq!((worst.row, worst.error()), (1, f64::INFINITY));
        }
    }
}
