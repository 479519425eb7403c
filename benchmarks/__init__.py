"""Benchmarks of tlt-engine against stock vLLM; each run leaves one JSON file that README tables are made from."""
