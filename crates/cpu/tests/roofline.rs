//! Measured limits.

use vllm_apple_cpu::Isa;
use vllm_apple_cpu::roofline::{peak_byte_flops_of, peak_flops_of, read_bandwidth};
use vllm_apple_ops::DType;
use vllm_apple_ops::pool::Pool;

#[test]
fn limits_are_positive_for_every_instruction_set() {
    let pool = Pool::with_available_parallelism();
    assert!(read_bandwidth(&pool).unwrap() > 0.0);
    for isa in Isa::available() {
        for dtype in DType::FLOATS {
            assert!(peak_flops_of(&pool, isa, dtype) > 0.0);
        }
        assert!(peak_byte_flops_of(&pool, isa) > 0.0);
    }
}
