"""Makes the tiny tokenizers, each of the kind that one model family ships. Knows nothing of models' weights."""

import json
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from corpus import sentences

TEMPLATES = Path(__file__).parent / "templates"

# The splitting regexes are facts of the formats: Qwen2's is in transformers' tokenization_qwen2.py, Llama 3's in
# the tokenizer.json of Meta-Llama-3.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Few, so that most other scripts need the byte fallback.
SINGLE_CHARACTERS = 80


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def train_byte_level_bpe(pattern: str, size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Trains a byte-level BPE of `size` tokens without special ones: 256 bytes first, then the merges."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(sentences(), trainer)
    return _model_of(trained)


def _model_of(trained: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def qwen():
    """Qwen2's kind: byte-level BPE, NFC, one digit at a time. The added tokens follow the vocabulary."""
    vocab, merges = train_byte_level_bpe(QWEN2_SPLIT, 497)
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    # Qwen2.5 has such tokens: added, so never split, but not special, so never skipped.
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    tokenizer.chat_template = _template("qwen")
    return tokenizer


def llama3():
    """Llama 3's kind: byte-level BPE, up to three digits at a time, BOS added by a template post-processor."""
    vocab, merges = train_byte_level_bpe(LLAMA3_SPLIT, 440)
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    inner.add_special_tokens([AddedToken(token, special=True) for token in specials])
    bos = (specials[0], inner.token_to_id(specials[0]))
    inner.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]}:1 $B:1", special_tokens=[bos]),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=specials[0], eos_token="<|eot_id|>")
    tokenizer.chat_template = _template("llama3")
    return tokenizer


def _sentencepiece_bpe(size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A BPE as converted from SentencePiece: unk, bos, eos, 256 bytes, merged pieces, then single characters."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    lines = [line.strip("\n") for line in sentences()]
    # The trainer breaks ties between equally rare characters by the order of a hash map, so it gets no choice.
    counts = Counter("".join(lines).replace(" ", "▁"))
    single = sorted(counts, key=lambda character: (-counts[character], character))[:SINGLE_CHARACTERS]
    trainer = trainers.BpeTrainer(
        vocab_size=size - 259, initial_alphabet=single, limit_alphabet=SINGLE_CHARACTERS, show_progress=False
    )
    trained.train_from_iterator(lines, trainer)
    _, merges = _model_of(trained)
    merged = [left + right for left, right in merges]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + merged + single
    return {piece: index for index, piece in enumerate(pieces)}, merges


def llama2():
    """Llama 2's kind as its tokenizer.json has it: Prepend and Replace normalizers, byte fallback, added BOS."""
    vocab, merges = _sentencepiece_bpe(443)
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = _template("llama2")
    return tokenizer


def mistral():
    """Mistral's kind as transformers writes it today: a Metaspace pre-tokenizer instead of the normalizers."""
    vocab, merges = _sentencepiece_bpe(443)
    tokenizer = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
    tokenizer.chat_template = _template("mistral")
    return tokenizer


KINDS = {"qwen": qwen, "llama3": llama3, "llama2": llama2, "mistral": mistral}

# Real checkpoints keep their template in either of two places; here each kind has one of them.
TEMPLATE_IN_CONFIG = {"llama2", "llama3"}


def save(kind: str, directory: Path):
    """Writes the tokenizer's files as transformers saves them."""
    tokenizer = KINDS[kind]()
    tokenizer.save_pretrained(directory, save_jinja_files=kind not in TEMPLATE_IN_CONFIG)
    return tokenizer
