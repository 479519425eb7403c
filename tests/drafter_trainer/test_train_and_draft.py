"""What training learns is what drafting does: the same token at the same place, with the same features in view."""

import torch

from drafter.small import HIDDEN, NUM_AUX, random_sample
from drafter_trainer.counting import EMBEDDING, embed, new_trainer
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.runtime import DrafterRuntime, TreeShape
from tlt_engine.drafter_trainer.acceptance import chain_acceptance
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.spec.drafter import DraftRequest

DEPTH = 3


def span(num_tokens: int) -> Sample:
    """Random text whose target is sure of each next token."""
    sample = random_sample(num_tokens)
    following = torch.cat([sample.token_ids[1:], sample.token_ids[:1]])
    return Sample(**vars(sample) | {"features": sample.features.float(), "final_hidden": 3 * EMBEDDING[following]})


def test_a_drafter_that_knows_a_text_by_heart_drafts_it():
    sample = span(20)
    trainer = new_trainer(learning_rate=5e-3)
    for _ in range(150):
        trainer.step([[sample]])
    assert sum(chain_acceptance(trainer.model, [sample], embed, DEPTH)) == DEPTH
    ring = FeatureRing(1, trainer.model.config.window, NUM_AUX * HIDDEN, dtype=torch.float32)
    shape = TreeShape(DEPTH, 1)
    runtime = DrafterRuntime(trainer.model.config, embed, ring, 1, shape, torch.float32, "float32")
    runtime.use(trainer.model)
    ring.admit("r")
    for known in range(2, len(sample) - DEPTH):
        start = 0 if known == 2 else known - 2
        ring.reserve("r", start, known - 1 - start)
        rows = torch.arange(start, known - 1)
        ring.write(torch.zeros_like(rows), rows, list(sample.features.split(HIDDEN, dim=-1)), rows)
        ids = sample.token_ids[:known].numpy().astype("int32")
        (tree,) = runtime.draft([DraftRequest("r", ids, 1, max_nodes=DEPTH, seed=None, max_depth=99)])
        assert tree.token_ids == sample.token_ids[known : known + DEPTH].tolist(), known


def test_the_average_is_between_what_it_followed():
    from tlt_engine.drafter_trainer.average import DECAY, WeightAverage

    trainer = new_trainer()
    average = WeightAverage(trainer.model)
    seen = [trainer.model.fc.weight.detach().clone()]
    for _ in range(5):
        trainer.step([[span(20)]])
        seen.append(trainer.model.fc.weight.detach().clone())
        average.follow(trainer.model)
    low, high = torch.stack(seen).amin(dim=0), torch.stack(seen).amax(dim=0)
    assert ((average.model.fc.weight >= low - 1e-6) & (average.model.fc.weight <= high + 1e-6)).all()
    for _ in range(int(12 / (1 - DECAY))):
        average.follow(trainer.model)
    assert torch.allclose(average.model.fc.weight, trainer.model.fc.weight, atol=1e-4)
    before = average.model.fc.weight.clone()
    trainer.model.fc.weight.data += 1.0
    average.follow(trainer.model)
    assert torch.allclose(average.model.fc.weight - before, torch.full_like(before, 1 - DECAY), atol=1e-3)
