"""Training learns, is repeatable, survives bad numbers, and goes on where it stopped."""

import math

import pytest
import torch

from drafter.small import HIDDEN, VOCAB, random_embedding, random_sample, small_drafter
from tlt_engine.drafter_trainer.acceptance import chain_acceptance
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.drafter_trainer.trainer import RECIPES, Trainer, TrainerConfig
from tlt_engine.drafter_trainer.warmup import choose_draft_vocabulary, epoch, train

EMBEDDING = random_embedding().float()


def embed(token_ids):
    return EMBEDDING[token_ids]


def counting_sample(start: int, num_tokens: int = 24) -> Sample:
    """Text that counts up by 2; the target is sure of each next token."""
    token_ids = (torch.arange(num_tokens) * 2 + start) % VOCAB
    features = EMBEDDING[token_ids].repeat(1, 2)
    return Sample(
        req_id=str(start), token_ids=token_ids, features=features, final_hidden=EMBEDDING[(token_ids + 2) % VOCAB]
    )


def head(hidden):
    return hidden @ EMBEDDING.T


def new_trainer(recipe="eagle3", **settings):
    model = small_drafter().float().requires_grad_(True)
    for parameter in model.parameters():
        parameter.data *= 0.3 if parameter.ndim > 1 else 1.0
    return Trainer(
        model,
        embed,
        head,
        TrainerConfig(**{"recipe": recipe, "learning_rate": 1e-2, "precision": "float32"} | settings),
    )


SAMPLES = [counting_sample(start) for start in range(0, VOCAB, 8)]
HELD_OUT = [counting_sample(start) for start in range(2, VOCAB, 8)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_learns_to_count(recipe):
    trainer = new_trainer(recipe)
    before = sum(chain_acceptance(trainer.model, HELD_OUT, embed, 3))
    for _ in range(60):
        result = trainer.step([SAMPLES])
    after = chain_acceptance(trainer.model, HELD_OUT, embed, 3)
    assert result.is_applied and math.isfinite(result.loss)
    assert before < 1.0
    assert after[0] > 0.9, after
    if RECIPES[recipe].num_passes > 1:
        assert after[2] > 0.9, "passes on its own outputs are what deeper drafts learn from"


def test_micro_batches_add_up_to_one_step():
    together, apart = new_trainer(), new_trainer()
    first = together.step([SAMPLES[:2]])
    second = apart.step([[SAMPLES[0]], [SAMPLES[1]]])
    assert first.loss == pytest.approx(second.loss, rel=1e-4)
    for one, other in zip(together.model.parameters(), apart.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-3)


def test_the_same_seed_and_samples_give_the_same_weights():
    trainers = [new_trainer(), new_trainer()]
    for trainer in trainers:
        for number in range(3):
            for step in epoch(SAMPLES, number):
                trainer.step(step)
    for one, other in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.equal(one, other)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    trainer = new_trainer()
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    broken = random_sample(12)
    broken = type(broken)(**vars(broken) | {"features": broken.features * float("nan")})
    result = trainer.step([[broken]])
    assert not result.is_applied
    assert trainer.num_steps == 0
    for one, other in zip(before, trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_unknown_recipe_is_refused_by_name():
    with pytest.raises(ValueError, match=r"recipe: expected one of \['eagle', 'eagle3', 'hass'\], got 'medusa'"):
        new_trainer("medusa")


def run(trainer, state_file=None, stop_after=None):
    seen = []

    def report(evaluation, loss, is_best):
        seen.append((evaluation.num_tokens, evaluation.acceptance_length, is_best))
        if stop_after is not None and len(seen) > stop_after:
            raise KeyboardInterrupt

    train(
        trainer,
        SAMPLES,
        HELD_OUT,
        embed,
        num_epochs=4,
        depth=3,
        evaluations_per_epoch=1,
        report=report,
        state_file=state_file,
    )
    return seen


def test_training_that_was_stopped_ends_with_the_same_weights(tmp_path):
    whole = new_trainer()
    seen = run(whole)
    stopped = new_trainer()
    with pytest.raises(KeyboardInterrupt):
        run(stopped, tmp_path / "trainer.pt", stop_after=2)
    resumed = new_trainer()
    rest = run(resumed, tmp_path / "trainer.pt")
    assert 0 < len(rest) < len(seen)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_best_weights_are_kept_and_not_the_last(monkeypatch):
    trainer = new_trainer()
    values = iter([1.0, 3.0, 2.0, 1.5, 1.2])
    monkeypatch.setattr("tlt_engine.drafter_trainer.warmup.chain_acceptance", lambda *_: [next(values) - 1])
    snapshots = []
    monkeypatch.setattr(trainer, "step", lambda step, stock=trainer.step: (snapshots.append(None), stock(step))[1])
    weights_at = {}

    def report(evaluation, loss, is_best):
        weights_at[evaluation.acceptance_length] = trainer.model.fc.weight.clone()

    train(trainer, SAMPLES, HELD_OUT, embed, num_epochs=4, depth=3, evaluations_per_epoch=1, report=report)
    assert torch.equal(trainer.model.fc.weight, weights_at[3.0])
    assert not torch.equal(trainer.model.fc.weight, weights_at[1.2])


def test_an_epoch_holds_each_sample_once():
    samples = [counting_sample(start, num_tokens=200) for start in range(17)]
    steps = list(epoch(samples, 3))
    seen = [sample.req_id for step in steps for batch in step for sample in batch]
    assert sorted(seen) == sorted(sample.req_id for sample in samples)
    assert len(steps) > 1
    assert all(sum(map(len, batch)) <= 512 for step in steps for batch in step)


def test_the_draft_vocabulary_is_what_was_written_then_the_lowest_ids():
    samples = [counting_sample(30, num_tokens=3)]
    assert choose_draft_vocabulary(samples, 5, VOCAB).tolist() == [0, 1, 30, 32, 34]


def test_stored_samples_come_back(tmp_path):
    store = SampleStore(tmp_path / "samples")
    first, second = random_sample(5, seed=1, num_prompt_tokens=2, first_position=3), random_sample(7, seed=2)
    store.add([first], torch.float64)
    store.add([second], torch.float64)
    (tmp_path / "samples" / "round-0002.partial").write_bytes(b"cut")
    again = SampleStore(tmp_path / "samples")
    assert again.num_rounds == 2
    for one, other in zip(again, (first, second), strict=True):
        assert (one.req_id, one.first_position, one.num_prompt_tokens) == (
            other.req_id,
            other.first_position,
            other.num_prompt_tokens,
        )
        assert torch.equal(one.token_ids, other.token_ids)
        assert torch.equal(one.features, other.features)
        assert one.features.shape == (len(other), 2 * HIDDEN)
    again.clear()
    assert not (tmp_path / "samples").exists()
