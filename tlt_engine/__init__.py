"""Lossless, adaptive speculative decoding for long-tail generation, as a plugin of stock vLLM."""

__version__ = "0.1.0"
