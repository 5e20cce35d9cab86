"""How weights are quantised, by the names that vLLM has for it here. It reads no weight."""

# What vLLM says of a checkpoint whose weights are codes.
STORED = "vllm-apple"
# What the engine makes of a checkpoint of floats.
AT_LOAD = ("int8", "int4")
# What `--quantization` may say besides vLLM's own names.
NAMES = (*AT_LOAD, "mlx")


def check_method(name: str) -> None:
    """Raises ValueError for what vLLM would make of floats at load."""
    if name not in (STORED, *AT_LOAD):
        raise ValueError(
            f"vllm-apple does not support --quantization {name} for a checkpoint of floats: it makes {' or '.join(AT_LOAD)} of one"
        )


def at_load(name: str | None) -> str | None:
    """What the engine does at load."""
    return name if name in AT_LOAD else None
