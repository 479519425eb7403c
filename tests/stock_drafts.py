"""Whether stock vLLM's ``eagle3`` drafts from an export what our runtime drafts from the checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from engine import EngineJob, run_engine
from tlt_engine.drafter.checkpoint import Checkpoint
from tlt_engine.drafter.export import export
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.drafter.runtime import DrafterRuntime, TreeShape
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.spec.drafter import DraftRequest, FinishReason

DEPTH = 4

IN_ONE_PIECE = {"enable_prefix_caching": False, "max_num_batched_tokens": 2048}
"""Across chunks and cached prefixes stock's drafter has keys of other next tokens; in one piece it has its own."""


def count_same_drafts(
    target: str, checkpoint: Checkpoint, batch: dict, samples: Sequence[Sample], engine: dict, folder: Path
) -> tuple[int, int]:
    """Serves an export by stock and compares each chain it drafts with ours.

    Args:
        target: directory of the target.
        checkpoint: the drafter.
        batch: greedy requests.
        samples: what the target computed for the same requests, named as the engine names those of batch 0.
        engine: keyword arguments of ``LLM``.
        folder: where to export to.

    Returns:
        How many chains are the same tokens, and how many were compared: those inside the window.
    """
    export(checkpoint, folder, to="vllm")
    eagle3 = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": DEPTH}
    result = run_engine(EngineJob(target, [batch], eagle3, {**engine, **IN_ONE_PIECE}, traces_drafts=True))
    embedding = TargetWeights(Path(target)).embedding
    window, num_features = checkpoint.config.window, checkpoint.tensors["fc.weight"].shape[1]
    ring = FeatureRing(1, window, num_features, dtype=torch.float32)
    runtime = DrafterRuntime(
        checkpoint.config,
        lambda ids: F.embedding(ids, embedding),
        ring,
        1,
        TreeShape(DEPTH, 1),
        torch.float32,
        "float32",
    )
    runtime.use(checkpoint.build())
    drafter = LearnedDrafter(runtime, ring)
    num_same = num_compared = 0
    for req_id, num_tokens, drafted in result.drafts:
        index = int(req_id.partition("-")[0].split(".")[1])
        num_prompt_tokens = len(batch["prompts"][index])
        sample = next(sample for sample in samples if sample.req_id.startswith(f"0.{index}-"))
        is_inside = sample.first_position == 0 and num_tokens <= min(len(sample), window)
        if not drafted or not is_inside or num_tokens <= num_prompt_tokens:
            continue
        ring.admit("r")
        ring.reserve("r", 0, num_tokens - 1)
        rows = torch.arange(num_tokens - 1)
        ring.write(torch.zeros_like(rows), rows, [sample.features], rows)
        ids = sample.token_ids[:num_tokens].numpy().astype(np.int32)
        request = DraftRequest("r", ids, num_prompt_tokens, max_nodes=DEPTH, seed=None, max_depth=99)
        (tree,) = drafter.propose([request])
        drafter.finish("r", FinishReason.COMPLETED)
        num_same += tree.token_ids == drafted
        num_compared += 1
    return num_same, num_compared
