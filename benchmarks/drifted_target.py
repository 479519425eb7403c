"""A target as reinforcement learning could leave it behind: the same model, taught to number the steps it writes."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

LEARNING_RATE = 1e-4
STEP_SEQUENCES = 4
SEED = 3


def make_drifted_target(model: str, tasks: str, folder: Path, *, num_prompts: int) -> None:
    """Fine-tunes a model on its own answers, written as numbered steps.

    Args:
        model: directory of the model.
        tasks: of reasoning-gym, joined with ``+``.
        folder: where the new model goes.
        num_prompts: answers to learn from, once.
    """
    from tlt_engine.server.recording import RecordingEngine, read_prompts

    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = read_prompts(f"reasoning-gym:{tasks}", tokenizer, num_prompts, SEED)
    engine = RecordingEngine(model, max_model_len=1024, max_num_seqs=32, dtype="float32")
    samples = engine.generate(prompts, temperatures=[1.0] * num_prompts, max_tokens=256, first_seed=SEED)
    engine.close()
    texts = []
    for sample in samples:
        answer = numbered(tokenizer.decode(sample.token_ids[sample.num_prompt_tokens :], skip_special_tokens=True))
        texts.append((prompts[int(sample.req_id)], [*tokenizer(answer).input_ids, tokenizer.eos_token_id]))
    random.Random(SEED).shuffle(texts)  # noqa: S311 - not for secrets
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(target.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for place, (prompt, answer) in enumerate(tqdm(texts, desc="fine-tune")):
        labels = [-100] * len(prompt) + answer
        target(torch.tensor([prompt + answer]), labels=torch.tensor([labels])).loss.backward()
        if (place + 1) % STEP_SEQUENCES == 0:
            torch.nn.utils.clip_grad_norm_(target.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    target.save_pretrained(folder)
    for file in Path(model).iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)


def numbered(text: str) -> str:
    """Writes each sentence as a step of its own."""
    sentences = [sentence.strip() for sentence in re.split(r"(?<=[.:!?])\s+|\n+", text) if sentence.strip()]
    return "\n".join(f"Step {number}) {sentence}" for number, sentence in enumerate(sentences, start=1))
