"""Training learns, is repeatable, survives bad numbers, and goes on where it stopped."""

import math

import pytest
import torch

from drafter.small import HIDDEN, VOCAB, random_sample
from drafter_trainer.counting import counting_sample, embed, new_trainer
from tlt_engine.drafter_trainer.acceptance import chain_acceptance
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.drafter_trainer.trainer import RECIPES
from tlt_engine.drafter_trainer.unroll import unroll
from tlt_engine.drafter_trainer.vocabulary import choose_draft_vocabulary
from tlt_engine.drafter_trainer.warmup import epoch, train

SAMPLES = [counting_sample(start) for start in range(0, VOCAB, 8)]
HELD_OUT = [counting_sample(start) for start in range(2, VOCAB, 8)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_learns_to_count(recipe):
    trainer = new_trainer(recipe, learning_rate=5e-3)
    before = sum(chain_acceptance(trainer.model, HELD_OUT, embed, 3))
    for _ in range(100):
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


def test_the_gradient_is_a_mean_over_tokens():
    once, twice = new_trainer(), new_trainer()
    assert once.step([SAMPLES]).gradient_norm == pytest.approx(twice.step([SAMPLES, SAMPLES]).gradient_norm, rel=1e-4)


def test_the_same_seed_and_samples_give_the_same_weights():
    trainers = [new_trainer(), new_trainer()]
    for trainer in trainers:
        for number in range(3):
            for step in epoch(SAMPLES, number):
                trainer.step(step)
    for one, other in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.equal(one, other)


def weights_of(trainer):
    return [parameter.clone() for parameter in trainer.model.parameters()]


def spoilt(**changed):
    sample = random_sample(12)
    return type(sample)(**vars(sample) | changed)


POISON = {
    "features that are no numbers": (spoilt(features=random_sample(12).features * float("nan")), "loss not finite"),
    "a target that is no number": (
        spoilt(final_hidden=random_sample(12).final_hidden * float("inf")),
        "loss not finite",
    ),
    "a prompt alone": (spoilt(num_prompt_tokens=13), "nothing to learn"),
    "one token": (random_sample(1), "nothing to learn"),
}


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_left_out_and_counted_and_the_rest_is_learnt(kind):
    poison, reason = POISON[kind]
    trainer, clean = new_trainer(), new_trainer()
    before = weights_of(trainer)
    assert not trainer.step([[poison]]).is_applied
    assert trainer.num_skipped == {reason: 1}
    assert trainer.num_steps == 0
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert trainer.step([[poison], SAMPLES]).is_applied
    clean.step([SAMPLES])
    assert all(map(torch.equal, weights_of(clean), weights_of(trainer)))


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    trainer = new_trainer()
    before = weights_of(trainer)
    trainer.accumulate(SAMPLES)
    trainer.model.fc.weight.grad[0, 0] = float("inf")
    assert not trainer.apply().is_applied
    assert trainer.num_skipped == {"gradient not finite": 1}
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert trainer.step([SAMPLES]).is_applied


def test_a_step_that_is_abandoned_changes_nothing():
    trainer, other = new_trainer(), new_trainer()
    trainer.step([SAMPLES])
    other.step([SAMPLES])
    trainer.accumulate(SAMPLES[:2])
    trainer.abandon()
    assert all(map(torch.equal, weights_of(other), weights_of(trainer)))
    assert trainer.step([SAMPLES]) == other.step([SAMPLES])
    assert all(map(torch.equal, weights_of(other), weights_of(trainer)))


def test_micro_batches_of_a_step_are_unrolled_in_turn(monkeypatch):
    depths = []

    def noting(model, batch, embed, num_passes):
        depths.append(num_passes)
        return unroll(model, batch, embed, num_passes)

    monkeypatch.setattr("tlt_engine.drafter_trainer.trainer.unroll", noting)
    trainer = new_trainer(num_passes=(3, 1))
    trainer.step([SAMPLES[:1], SAMPLES[1:2], SAMPLES[:1]])
    trainer.accumulate(SAMPLES[:1])
    trainer.abandon()
    trainer.step([SAMPLES])
    assert depths == [3, 1, 3, 3, 3], "each step begins with the first depth"
    new_trainer("hass").step([SAMPLES, SAMPLES])
    assert depths[5:] == [3, 3]


def test_the_rate_warms_up_again_after_a_restart():
    trainer = new_trainer(warmup_steps=4)
    rates = []
    trainer.optimizer.step = rates.append
    for number in range(8):
        if number == 5:
            trainer.restart_schedule()
        trainer.step([SAMPLES])
    assert rates == [pytest.approx(1e-2 * share) for share in (0.25, 0.5, 0.75, 1, 1, 0.25, 0.5, 0.75)]


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
