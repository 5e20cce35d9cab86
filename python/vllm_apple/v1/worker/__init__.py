"""The worker that vLLM drives."""
