"""Inside a vLLM worker: the only package, besides ``plugin``, ``compat`` and ``server``, that knows vLLM."""
