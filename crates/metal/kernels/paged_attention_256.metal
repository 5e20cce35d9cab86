// paged_attention for heads of up to 256 elements, see paged_attention.metal: a library of its own, as a model has heads of one size.

INSTANTIATE("paged_attention_256_f32", float, 8, 1)
INSTANTIATE("paged_attention_256_f16", half, 8, 1)
INSTANTIATE("paged_attention_256_bf16", bfloat, 8, 1)
