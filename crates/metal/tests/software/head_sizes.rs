//! Caches whose sizes the kernels do not take: heads of 12 elements in blocks of 3 tokens. The host writes them, and under
//! strict that is an error.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, DType, Error, KvCache, KvSpec, Result, RopeKvWrite, RopeTable, Tensor, rope_kv_write};

type Metal = MetalBackend<SoftwareGpu>;

const SPEC: KvSpec = KvSpec { dtype: DType::F16, num_blocks: 3, block_size: 3, num_kv_heads: 1, head_dim: 12 };
const HALF: usize = SPEC.head_dim / 2;

fn backend(strict: bool) -> Metal {
    let options = MetalOptions { strict, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap()
}

fn floats(backend: &Metal, values: &[f32]) -> Tensor<<Metal as Backend>::Memory> {
    let mut tensor = backend.allocate(DType::F32, 1, values.len()).unwrap();
    backend.write(&mut tensor, &DType::F32.encode(values));
    tensor
}

fn integers(backend: &Metal, values: &[u32]) -> Tensor<<Metal as Backend>::Memory> {
    let mut tensor = backend.allocate(DType::U32, 1, values.len()).unwrap();
    backend.write(&mut tensor, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    tensor
}

/// Three heads of one token: query, key, value.
fn token() -> Vec<f32> {
    (0..3 * SPEC.head_dim).map(|i| i as f32 - 7.5).collect()
}

fn tables() -> [Vec<f32>; 2] {
    [f32::cos, f32::sin].map(|f| (0..HALF).map(|i| f(i as f32 + 0.3)).collect())
}

/// Writes the token to slot 1 of block 0.
fn write(backend: &mut Metal, cache: &mut KvCache<<Metal as Backend>::Memory>) -> Result<()> {
    let mut qkv = floats(backend, &token());
    let (positions, slot_mapping) = (integers(backend, &[0]), integers(backend, &[1]));
    let [cos, sin] = tables();
    let table = RopeTable { cos: floats(backend, &cos), sin: floats(backend, &sin) };
    let (qkv, positions, slot_mapping, table) = (&mut qkv, &positions, &slot_mapping, &table);
    RopeKvWrite { rows: 1, qkv, num_heads: 1, positions, slot_mapping, table, cache }.run(backend)
}

#[test]
fn the_host_writes_what_the_kernels_do_not_take() {
    let mut backend = backend(false);
    backend.allow_all_on_host();
    let mut cache = backend.allocate_kv_cache(SPEC).unwrap();
    write(&mut backend, &mut cache).unwrap();
    backend.synchronize().unwrap();
    let [cos, sin] = tables();
    let token = token();
    let (_, head) = token.split_at(SPEC.head_dim);
    let key = rope_kv_write::reference(&head[..SPEC.head_dim], &cos, &sin);
    let expected = (key.iter().map(|&k| DType::F16.round(k)).collect(), head[SPEC.head_dim..].to_vec());
    assert_eq!(backend.read_kv(&cache, 1), expected);
    assert!(backend.fallbacks().iter().map(|(kind, _)| kind.op).eq(["rope_kv_write"]));
}

#[test]
fn under_strict_it_is_an_error_and_of_attention_it_always_is() {
    let mut strict = backend(true);
    let refused = |result: Result<()>, op: &str| match result {
        Err(Error::Unsupported { op: refused, reason, .. }) => {
            let remedy = if op == "paged_attention" { "use `device` cpu" } else { "`metal_strict`=1" };
            assert!(refused == op && reason.contains(remedy), "{refused}: {reason}");
        }
        other => panic!("{op}: {other:?}"),
    };
    refused(strict.check_kv_cache(&SPEC), "paged_attention");
    refused(backend(false).check_kv_cache(&SPEC), "paged_attention");
    let mut patient = backend(false);
    patient.allow_all_on_host();
    let mut cache = patient.allocate_kv_cache(SPEC).unwrap();
    refused(write(&mut strict, &mut cache), "rope_kv_write");
}
