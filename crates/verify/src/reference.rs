//! A backend of nothing but the ops' own formulas, on the host: slow, and as right as f32 is. Sums are in f64, and only what the contract
//! rounds is rounded.

use std::sync::OnceLock;

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::*;

use crate::host_weight::HostWeight;

/// The backend. Computes on a pool of threads, and at once.
pub struct Reference {
    pool: Pool,
    /// The type of floats that lie in no file.
    copied: Option<DType>,
    /// The residual stream's rows after each norm that follows an addition, if they are to be kept.
    residuals: Option<Vec<Vec<f32>>>,
}

/// Bytes of a tensor, aligned for each type.
pub struct HostMemory(Vec<u32>);

/// A weight as [`HostWeight`].
pub struct ReferenceWeight(HostWeight);

impl Reference {
    /// On all cores. `copied` is the type of the model's floats if they lie in no file: for the plan of the memory.
    pub fn new(copied: Option<DType>) -> Self {
        Self { pool: Pool::with_available_parallelism(), copied, residuals: None }
    }

    /// Keeps the residual stream from now on.
    pub fn keep_residuals(&mut self) {
        self.residuals = Some(Vec::new());
    }

    /// What was kept since the last call: `[rows, hidden]` for each addition, of which a layer has two.
    pub fn take_residuals(&mut self) -> Vec<Vec<f32>> {
        self.residuals.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn floats(&self, tensor: &Tensor<HostMemory>, rows: usize) -> Vec<f32> {
        floats(self, tensor, rows)
    }

    fn put(&self, tensor: &mut Tensor<HostMemory>, values: &[f32]) {
        let bytes = tensor.dtype().encode(values);
        self.write(tensor, &bytes);
    }

    /// `f(0), f(1), …` of `n`, on all threads.
    fn parallel<T: Send + Sync>(&self, n: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
        self.pool.run(n, &|i, _| {
            // Every number comes once.
            let _ = results[i].set(f(i));
        });
        results.into_iter().map(|result| result.into_inner().expect("every number came")).collect()
    }

    /// `[rows, n]`, column by column.
    fn product(
        &self,
        x: &[f32],
        n: usize,
        k: usize,
        weight: impl Fn(usize) -> Vec<f32> + Sync,
        bias: &[f32],
    ) -> Vec<f32> {
        let rows = x.len() / k;
        let columns = self.parallel(n, |i| {
            let (weight, bias) = (weight(i), bias.get(i).map_or(0.0, |&bias| f64::from(bias)));
            x.chunks_exact(k).map(|row| (dot(row, &weight) + bias) as f32).collect::<Vec<_>>()
        });
        (0..rows).flat_map(|row| columns.iter().map(move |column| column[row])).collect()
    }
}

/// The first rows of a float tensor of any backend.
pub(crate) fn floats<B: Backend>(backend: &B, tensor: &Tensor<B::Memory>, rows: usize) -> Vec<f32> {
    tensor.dtype().decode(&backend.read(tensor)[..rows * tensor.cols() * tensor.dtype().size()])
}

/// The first `len` integers of a tensor of any backend.
pub(crate) fn integers<B: Backend>(backend: &B, tensor: &Tensor<B::Memory>, len: usize) -> Vec<u32> {
    let bytes = &backend.read(tensor)[..len * 4];
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// In f64, in eight chains: what differs between orders of f64 is far below what f32 can show.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0_f64; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sums.iter().sum::<f64>() + rest
}

fn unsupported<T>(op: &'static str) -> Result<T> {
    let reason = "the reference computes logits, nothing else".to_owned();
    Err(Error::Unsupported { device: "reference".to_owned(), op, reason })
}

impl Backend for Reference {
    type Memory = HostMemory;
    type Packed = ReferenceWeight;

    fn device(&self) -> DeviceInfo {
        let description = format!("the ops' formulas, {} threads", self.pool.threads());
        DeviceInfo { backend: "reference", description, facts: Vec::new() }
    }

    fn allocate(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<HostMemory>> {
        let words = (rows * cols * dtype.size()).div_ceil(4);
        Ok(Tensor::new(HostMemory(vec![0; words]), dtype, rows, cols))
    }

    fn check_kv_cache(&self, _: &KvSpec) -> Result<()> {
        Ok(())
    }

    /// Keys and values are kept in f32, rounded to the cache's type: `[slots, num_kv_heads * head_dim]`.
    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<HostMemory>> {
        let array = || HostMemory(vec![0; spec.num_slots() * spec.num_kv_heads * spec.head_dim]);
        Ok(KvCache { keys: array(), values: array(), spec })
    }

    fn weight_bytes(&self, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
        HostWeight::bytes(format, self.copied, groups, rows, cols)
    }

    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<ReferenceWeight>> {
        let (rows, cols) = source.check(format)?;
        let weight = HostWeight::new(&source, format)?;
        Ok(Weight::new(ReferenceWeight(weight), format, source.groups, rows, cols))
    }

    fn keeps_host_tensors(&self) -> bool {
        true
    }

    fn write(&self, tensor: &mut Tensor<HostMemory>, bytes: &[u8]) {
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut tensor.memory_mut().0);
        memory[..bytes.len()].copy_from_slice(bytes);
    }

    fn read<'a>(&self, tensor: &'a Tensor<HostMemory>) -> &'a [u8] {
        let bytes = tensor.rows() * tensor.cols() * tensor.dtype().size();
        &bytemuck::cast_slice(&tensor.memory().0)[..bytes]
    }

    fn read_kv(&self, cache: &KvCache<HostMemory>, slot: usize) -> (Vec<f32>, Vec<f32>) {
        let width = cache.spec.num_kv_heads * cache.spec.head_dim;
        let at = |memory: &HostMemory| memory.0[slot * width..][..width].iter().map(|&b| f32::from_bits(b)).collect();
        (at(&cache.keys), at(&cache.values))
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }

    fn embedding(&mut self, op: Embedding<'_, HostMemory, ReferenceWeight>) -> Result<()> {
        let ids = integers(self, op.ids, op.rows);
        let row = |&id: &u32| op.table.packed().0.row(0, id as usize);
        let out: Vec<f32> = ids.iter().flat_map(row).map(|value| value * op.scale).collect();
        self.put(op.out, &out);
        Ok(())
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, HostMemory>) -> Result<()> {
        let (x, weight) = (self.floats(op.x, op.rows), self.floats(op.weight, 1));
        self.put(op.out, &rms_norm::reference(&x, &weight, op.eps));
        Ok(())
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, HostMemory>) -> Result<()> {
        let (residual, delta) = (self.floats(op.residual, op.rows), self.floats(op.delta, op.rows));
        let weight = self.floats(op.weight, 1);
        let (residual, out) = add_rms_norm::reference(&residual, &delta, &weight, op.eps);
        self.put(op.residual, &residual);
        self.put(op.out, &out);
        if let Some(residuals) = &mut self.residuals {
            residuals.push(residual);
        }
        Ok(())
    }

    fn matmul(&mut self, op: Matmul<'_, HostMemory, ReferenceWeight>) -> Result<()> {
        let mut x = self.floats(op.x, op.rows);
        op.weight.packed().0.round(&mut x);
        let bias = op.bias.map(|bias| self.floats(bias, 1)).unwrap_or_default();
        let (n, k) = (op.weight.rows(), op.weight.cols());
        let products = self.product(&x, n, k, |i| op.weight.packed().0.row(0, i), &bias);
        let mut out = self.floats(op.out, op.rows);
        for (to, products) in out.chunks_exact_mut(op.out.cols()).zip(products.chunks_exact(n)) {
            to[op.first..][..n].copy_from_slice(products);
        }
        self.put(op.out, &out);
        Ok(())
    }

    fn qk_norm(&mut self, op: QkNorm<'_, HostMemory>) -> Result<()> {
        let qkv = self.floats(op.qkv, op.rows);
        let (q, k) = (self.floats(op.q_weight, 1), self.floats(op.k_weight, 1));
        self.put(op.qkv, &qk_norm::reference(&qkv, op.num_heads, op.num_kv_heads, &q, &k, op.eps));
        Ok(())
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, HostMemory>) -> Result<()> {
        let KvSpec { dtype, num_kv_heads, head_dim, .. } = op.cache.spec;
        let mut qkv = self.floats(op.qkv, op.rows);
        let slots = integers(self, op.slot_mapping, op.rows);
        self.rotate(&mut qkv, op.qkv.cols(), op.num_heads + num_kv_heads, op.positions, op.table);
        self.put(op.qkv, &qkv);
        let width = num_kv_heads * head_dim;
        for (row, &slot) in qkv.chunks_exact(op.qkv.cols()).zip(&slots) {
            let (keys, values) = row[op.num_heads * head_dim..].split_at(width);
            for (memory, from) in [(&mut op.cache.keys, keys), (&mut op.cache.values, values)] {
                let to = &mut memory.0[slot as usize * width..][..width];
                to.iter_mut().zip(from).for_each(|(to, &value)| *to = dtype.round(value).to_bits());
            }
        }
        Ok(())
    }

    fn rope(&mut self, op: Rope<'_, HostMemory>) -> Result<()> {
        let mut q = self.floats(op.q, op.rows);
        self.rotate(&mut q, op.q.cols(), op.num_heads, op.positions, op.table);
        self.put(op.q, &q);
        Ok(())
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, HostMemory>) -> Result<()> {
        let KvSpec { num_kv_heads, head_dim, .. } = op.cache.spec;
        let requests = Requests::new(self, op.sequences, op.cache.spec.block_size);
        let (qkv, width) = (self.floats(op.qkv, op.sequences.num_tokens), op.qkv.cols());
        let group = op.num_heads / num_kv_heads;
        let caches: Vec<Vec<Visible>> =
            (0..op.sequences.num_requests).map(|request| requests.visible(self, op.cache, request)).collect();
        let tokens = requests.tokens();
        let sinks = op.sinks.map(|sinks| self.floats(sinks, 1));
        let rows = self.parallel(tokens.len() * op.num_heads, |i| {
            let ((row, (request, position)), head) = ((i / op.num_heads, tokens[i / op.num_heads]), i % op.num_heads);
            let query = &qkv[row * width + head * head_dim..][..head_dim];
            let Visible { keys, values } = &caches[request][head / group];
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            paged_attention::reference(query, keys, values, position, op.scale, op.window, sink)
        });
        self.put(op.out, &rows.concat());
        Ok(())
    }

    fn gated_activation(&mut self, op: GatedActivation<'_, HostMemory>) -> Result<()> {
        let gate_up = self.floats(op.gate_up, op.rows);
        let out = gated_activation::reference(op.activation, &gate_up, op.out.cols());
        self.put(op.out, &out);
        Ok(())
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, HostMemory>) -> Result<()> {
        let logits = self.floats(op.logits, op.rows);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for logits in logits.chunks_exact(op.logits.cols()) {
            let (row_ids, row_weights) = topk_softmax::reference(logits, op.ids.cols(), op.renormalize);
            ids.extend(row_ids);
            weights.extend(row_weights);
        }
        self.write(op.ids, bytemuck::cast_slice(&ids));
        self.put(op.weights, &weights);
        Ok(())
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, HostMemory, ReferenceWeight>) -> Result<()> {
        let (groups, n, k) = (op.weight.groups(), op.weight.rows(), op.weight.cols());
        let ids = integers(self, op.ids, op.tokens * op.ids.cols());
        let mut x = self.floats(op.x, ids.len() / op.pairs_per_row);
        op.weight.packed().0.round(&mut x);
        let bias = op.bias.map(|bias| self.floats(bias, groups));
        let (mut out, cols) = (self.floats(op.out, ids.len()), op.out.cols());
        for group in 0..groups {
            let pairs: Vec<usize> = (0..ids.len()).filter(|&pair| ids[pair] as usize == group).collect();
            let rows: Vec<f32> =
                pairs.iter().flat_map(|pair| &x[pair / op.pairs_per_row * k..][..k]).copied().collect();
            let bias = bias.as_ref().map_or(&[][..], |bias| &bias[group * n..][..n]);
            let products = self.product(&rows, n, k, |i| op.weight.packed().0.row(group, i), bias);
            for (&pair, products) in pairs.iter().zip(products.chunks_exact(n)) {
                out[pair * cols + op.first..][..n].copy_from_slice(products);
            }
        }
        self.put(op.out, &out);
        Ok(())
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, HostMemory>) -> Result<()> {
        let (top_k, hidden) = (op.weights.cols(), op.out.cols());
        let (x, weights) = (self.floats(op.x, op.rows * top_k), self.floats(op.weights, op.rows));
        self.put(op.out, &moe_combine::reference(&x, &weights, top_k, hidden));
        Ok(())
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, HostMemory>) -> Result<()> {
        let (x, gate) = (self.floats(op.x, op.rows), self.floats(op.gate, op.rows));
        let out = self.floats(op.out, op.rows);
        self.put(op.out, &add_shared_expert::reference(&x, &gate, &out));
        Ok(())
    }

    fn gather_rows(&mut self, op: GatherRows<'_, HostMemory>) -> Result<()> {
        let (x, indices) = (self.floats(op.x, op.x.rows()), integers(self, op.indices, op.rows));
        self.put(op.out, &gather_rows::reference(&x, &indices, op.x.cols()));
        Ok(())
    }

    fn permute_columns(&mut self, op: PermuteColumns<'_, HostMemory>) -> Result<()> {
        let (x, cols) = (self.floats(op.x, op.rows), op.x.cols());
        let order = integers(self, op.order, op.order.rows() * cols);
        let ids = op.ids.map_or(vec![0; op.rows], |ids| integers(self, ids, op.rows * ids.cols()));
        self.put(op.out, &permute_columns::reference(&x, &order, cols, &ids));
        Ok(())
    }

    fn sample(&mut self, _: Sample<'_, HostMemory>) -> Result<()> {
        unsupported(sample::NAME)
    }
}

impl Reference {
    /// Rotates the first `heads` of each of the `rows`, which have `width` elements.
    fn rotate(
        &self,
        rows: &mut [f32],
        width: usize,
        heads: usize,
        positions: &Tensor<HostMemory>,
        table: &RopeTable<HostMemory>,
    ) {
        let half = table.cos.cols();
        let positions = integers(self, positions, rows.len() / width);
        let tables = [&table.cos, &table.sin].map(|table| self.floats(table, table.rows()));
        for (row, &position) in rows.chunks_exact_mut(width).zip(&positions) {
            let [cos, sin] = [0, 1].map(|i| &tables[i][position as usize * half..][..half]);
            for head in row.chunks_exact_mut(2 * half).take(heads) {
                let rotated = rope::reference(head, cos, sin);
                head.copy_from_slice(&rotated);
            }
        }
    }
}

/// Where the requests of a step are, on the host.
pub(crate) struct Requests {
    starts: Vec<u32>,
    seq_lens: Vec<u32>,
    block_table: Vec<u32>,
    stride: usize,
    block_size: usize,
}

/// Keys and values of a head, `[positions, head_dim]`.
pub(crate) struct Visible {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

impl Requests {
    pub fn new<B: Backend>(backend: &B, s: &Sequences<B::Memory>, block_size: usize) -> Self {
        Self {
            starts: integers(backend, &s.query_start_loc, s.num_requests + 1),
            seq_lens: integers(backend, &s.seq_lens, s.num_requests),
            block_table: integers(backend, &s.block_table, s.num_requests * s.block_table_stride),
            stride: s.block_table_stride,
            block_size,
        }
    }

    /// The request and the position of each row.
    pub fn tokens(&self) -> Vec<(usize, usize)> {
        let of = |(request, bounds): (usize, &[u32])| {
            let len = (bounds[1] - bounds[0]) as usize;
            let first = self.seq_lens[request] as usize - len;
            (first..first + len).map(move |position| (request, position))
        };
        self.starts.windows(2).enumerate().flat_map(of).collect()
    }

    /// What each head of a request's last token sees.
    pub fn visible<B: Backend>(&self, backend: &B, cache: &KvCache<B::Memory>, request: usize) -> Vec<Visible> {
        let KvSpec { num_kv_heads, head_dim, .. } = cache.spec;
        let new = || Visible { keys: Vec::new(), values: Vec::new() };
        let mut heads: Vec<Visible> = (0..num_kv_heads).map(|_| new()).collect();
        for position in 0..self.seq_lens[request] as usize {
            let block = self.block_table[request * self.stride + position / self.block_size] as usize;
            let (keys, values) = backend.read_kv(cache, block * self.block_size + position % self.block_size);
            let of_heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
            for (head, (key, value)) in heads.iter_mut().zip(of_heads) {
                head.keys.extend_from_slice(key);
                head.values.extend_from_slice(value);
            }
        }
        heads
    }
}
