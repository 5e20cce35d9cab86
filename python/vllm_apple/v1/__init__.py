"""Named like the parts of vLLM that they stand for."""
