"""What vLLM asks about attention."""
