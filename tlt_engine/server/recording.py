"""Responses of a target generated in this process, together with what a drafter learns from them."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tlt_engine.drafter_trainer.sample import Sample


class RecordingEngine:
    """vLLM with method ``tlt`` that records every request."""

    def __init__(self, model: str, *, max_model_len: int, max_num_seqs: int, dtype: str, seed: int = 0) -> None:
        """Starts vLLM.

        Args:
            model: name or directory of the target.
            max_model_len: longest request, prompt included.
            max_num_seqs: requests that run side by side.
            dtype: of the target.
            seed: of requests that bring none.
        """
        # In this process, so that samples are handed over and not copied through a pipe.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM

        self._llm = LLM(
            model=model,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            enforce_eager=True,
            enable_prefix_caching=False,  # a cached prefix is not computed, so nothing of it could be recorded
            seed=seed,
            speculative_config={"method": "tlt", "record_samples": True},
        )

    def generate(
        self, prompts: Sequence[list[int]], *, temperatures: Sequence[float], max_tokens: int, first_seed: int
    ) -> list[Sample]:
        """Generates one response to each prompt.

        Args:
            prompts: token ids.
            temperatures: of each request.
            max_tokens: longest response.
            first_seed: seed of the first request; the others count up.

        Returns:
            Samples named by the place of their prompt.
        """
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        for place, (prompt, temperature) in enumerate(zip(prompts, temperatures, strict=True)):
            params = SamplingParams(
                temperature=temperature, max_tokens=max_tokens, seed=first_seed + place, detokenize=False
            )
            engine.add_request(str(place), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            engine.step()
        engine.step()  # requests leave the worker in the step after their last one
        samples: list[Sample] = self._llm.collective_rpc("tlt_take_samples")[0]
        # vLLM adds something random to a request's name.
        return [replace(sample, req_id=sample.req_id.partition("-")[0]) for sample in samples]

    def close(self) -> None:
        """Frees the engine's memory."""
        self._llm.llm_engine.engine_core.shutdown()


def read_prompts(source: str, tokenizer: Any, count: int, seed: int) -> list[list[int]]:
    """Reads prompts as chat requests.

    Args:
        source: a ``.jsonl`` file whose lines have ``prompt`` (text) or ``messages`` (chat), or
            ``reasoning-gym:NAME[+NAME...]``.
        tokenizer: the target's.
        count: how many; a file that has fewer is read again from its start.
        seed: of a reasoning-gym data set.

    Raises:
        ValueError: the source cannot be read; the text names it and the line.
    """
    if source.startswith("reasoning-gym:"):
        texts = _reasoning_gym(source.removeprefix("reasoning-gym:"), count, seed)
        return [chat_prompt(tokenizer, text) for text in texts]
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"--data {source}: expected a .jsonl file or 'reasoning-gym:NAME'")
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"--data {source}: no line with a prompt")
    return [_chat_line(tokenizer, source, lines[place % len(lines)], place % len(lines)) for place in range(count)]


def _reasoning_gym(names: str, count: int, seed: int) -> list[str]:
    try:
        import reasoning_gym
    except ImportError:
        raise ValueError("--data reasoning-gym:...: install it with pip install 'tlt-engine[bench]'") from None
    tasks = names.split("+")
    per_task = -(-count // len(tasks))
    try:
        sets = [reasoning_gym.create_dataset(task, size=per_task, seed=seed) for task in tasks]
    except ValueError as error:
        raise ValueError(f"--data reasoning-gym:{names}: {error}") from None
    return [str(sets[place % len(sets)][place // len(sets)]["question"]) for place in range(count)]


def _chat_line(tokenizer: Any, source: str, line: str, number: int) -> list[int]:
    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--data {source}, line {number + 1}: {error}") from None
    if isinstance(entry.get("messages"), list):
        return _apply(tokenizer, entry["messages"])
    if isinstance(entry.get("prompt"), str):
        return chat_prompt(tokenizer, entry["prompt"])
    raise ValueError(f"--data {source}, line {number + 1}: expected the key 'prompt' (text) or 'messages' (chat)")


def chat_prompt(tokenizer: Any, text: str) -> list[int]:
    """Returns the token ids of a user's message, in the tokenizer's chat form if it has one."""
    return _apply(tokenizer, [{"role": "user", "content": text.strip()}])


def _apply(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer("\n".join(str(message["content"]) for message in messages)).input_ids)
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids
