"""Training of the drafter; knows nothing of vLLM, so that it runs wherever torch does."""
