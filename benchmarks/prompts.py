"""Real prompts with a long tail of response lengths: reasoning-gym tasks through the model's chat template."""

from __future__ import annotations

import reasoning_gym
from transformers import AutoTokenizer

ROLLOUT_TASKS: tuple[str, ...] = (
    "leg_counting",
    "time_intervals",
    "number_filtering",
    "simple_equations",
    "gsm_symbolic",
    "chain_sum",
    "count_primes",
    "word_sorting",
)
"""Short and long answers mixed, all of them answered in words by a 135M model."""
MATH_TASKS: tuple[str, ...] = ("gsm_symbolic", "chain_sum", "simple_equations", "leg_counting")

_INSTRUCTION = "Think step by step, then give the final answer."
_MEASURED_SEED = 1234
_WARMUP_SEED = 99


def make_prompts(model: str, tasks: tuple[str, ...], num_prompts: int, seed: int = _MEASURED_SEED) -> list[list[int]]:
    """Returns tokenised chat prompts, the tasks taken in turn.

    Args:
        model: Directory of the model, for its tokenizer and chat template.
        tasks: Names of reasoning-gym data sets.
        num_prompts: How many prompts; equal arguments give equal prompts.
        seed: Of the tasks' generators.

    Returns:
        ``num_prompts`` lists of token ids, generation prompt included.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    per_task = -(-num_prompts // len(tasks))
    questions = [[entry["question"] for entry in _entries(task, per_task, seed)] for task in tasks]
    in_turn = [questions[index % len(tasks)][index // len(tasks)] for index in range(num_prompts)]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{question.strip()}\n\n{_INSTRUCTION}"}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        for question in in_turn
    ]


def make_warmup_prompts(model: str, num_prompts: int) -> list[list[int]]:
    """Returns prompts of the same kind that no benchmark measures."""
    return make_prompts(model, MATH_TASKS, num_prompts, seed=_WARMUP_SEED)


def _entries(task: str, size: int, seed: int) -> list[dict]:
    """Draws a task's entries."""
    dataset = reasoning_gym.create_dataset(task, size=size, seed=seed)
    return [dataset[index] for index in range(size)]
