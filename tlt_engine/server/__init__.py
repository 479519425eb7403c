"""What joins vLLM's OpenAI server: routes that read the workers' state."""
