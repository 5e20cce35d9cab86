// paged_attention for heads of up to 128 elements, see paged_attention.metal: a library of its own, as a model has heads of one size.

INSTANTIATE("paged_attention_128_f32", float, 4, 1)
INSTANTIATE("paged_attention_128_f16", half, 4, 1)
INSTANTIATE("paged_attention_128_bf16", bfloat, 4, 1)
INSTANTIATE("paged_attention_wide_128_f32", float, 4, 2)
INSTANTIATE("paged_attention_wide_128_f16", half, 4, 2)
INSTANTIATE("paged_attention_wide_128_bf16", bfloat, 4, 2)
