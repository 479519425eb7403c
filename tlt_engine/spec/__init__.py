"""Speculation as mathematics: trees, budgets, costs and model-free drafting; nothing here knows vLLM."""
