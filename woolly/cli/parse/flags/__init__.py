"""Flags of llama.cpp, vLLM and Ollama, and what Woolly does with each."""

__all__: list[str] = []
