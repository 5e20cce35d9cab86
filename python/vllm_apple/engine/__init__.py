"""Between vLLM's objects and the engine's plain data. It schedules nothing and computes nothing."""
