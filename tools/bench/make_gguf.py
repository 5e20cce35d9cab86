"""Writes a Qwen2 model of a config.json's shape with random weights of a type (BF16, Q4_0, Q8_0) and no tokenizer: make_gguf.py CONFIG TYPE OUT"""

import json
import sys
from pathlib import Path

import gguf
import gguf.quants
import numpy as np


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    hidden, intermediate, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    kind = sys.argv[2]
    writer = gguf.GGUFWriter(sys.argv[3], "qwen2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")

    random = np.random.default_rng(0)

    def matrix(name, rows, cols):
        dtype = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(random.normal(0, 0.05, (rows, cols)).astype(np.float32), dtype)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=dtype)

    def vector(name, value, size):
        writer.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd", config["vocab_size"], hidden)
    vector("output_norm.weight", 1, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, outputs in (("q", hidden), ("k", kv), ("v", kv)):
            matrix(f"blk.{layer}.attn_{name}", outputs, hidden)
            vector(f"blk.{layer}.attn_{name}.bias", 0, outputs)
        matrix(f"blk.{layer}.attn_output", hidden, hidden)
        for name in ("gate", "up"):
            matrix(f"blk.{layer}.ffn_{name}", intermediate, hidden)
        matrix(f"blk.{layer}.ffn_down", hidden, intermediate)
        vector(f"blk.{layer}.attn_norm.weight", 1, hidden)
        vector(f"blk.{layer}.ffn_norm.weight", 1, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
