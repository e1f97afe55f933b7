"""What runs inside the engine container, beside vLLM."""
