"""Benchmarks of tlt-engine against stock vLLM; every run leaves one JSON file that the README's tables are made from."""
