// paged_attention for heads of up to 64 elements, see paged_attention.metal: a library of its own, as a model has heads of one size.

INSTANTIATE("paged_attention_64_f32", float, 2, 1)
INSTANTIATE("paged_attention_64_f16", half, 2, 1)
INSTANTIATE("paged_attention_64_bf16", bfloat, 2, 1)
INSTANTIATE("paged_attention_wide_64_f32", float, 2, 2)
INSTANTIATE("paged_attention_wide_64_f16", half, 2, 2)
INSTANTIATE("paged_attention_wide_64_bf16", bfloat, 2, 2)
