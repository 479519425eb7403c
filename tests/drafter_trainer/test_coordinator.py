"""The background trainer learns, publishes what is better only, converges, follows drift, and survives a restart."""

import copy
import itertools

import pytest
import torch

from drafter.small import VOCAB
from drafter_trainer.counting import counting_sample, embed, new_trainer
from tlt_engine.drafter_trainer.acceptance import Accepted, chain_acceptance
from tlt_engine.drafter_trainer.coordinator import Coordinator
from tlt_engine.drafter_trainer.publication import CoordinatorConfig, Phase
from tlt_engine.drafter_trainer.publisher import PATIENCE, Publisher, Verdict
from tlt_engine.drafter_trainer.sample_buffer import SampleBuffer
from tlt_engine.drafter_trainer.snapshot import snapshot

CONFIG = CoordinatorConfig(
    micro_batch_tokens=96,
    step_tokens=192,
    first_tokens=300,
    evaluation_tokens=(1500, 1500),
    held_out_tokens=240,
    depth=3,
)


class Bench:
    """A coordinator that is fed text and writes down what it publishes."""

    def __init__(self, **settings):
        self.published = []
        self.built_from = []
        self.numbers = itertools.count()
        self.coordinator = Coordinator(
            SampleBuffer(1 << 24), self.build, embed, self.published.append, CONFIG, **settings
        )

    def build(self, samples):
        self.built_from = samples
        return new_trainer(learning_rate=5e-3, warmup_steps=5)

    def feed(self, count=40, **about):
        for number in itertools.islice(self.numbers, count):
            self.coordinator.inbox.put(counting_sample((4 * number) % VOCAB, name=f"r{number}", **about))

    def run(self, pieces):
        for _ in range(pieces):
            self.coordinator.advance()

    def run_until(self, is_done, pieces=4000):
        for _ in range(pieces):
            if is_done():
                return
            self.coordinator.advance()
        raise AssertionError(self.coordinator.status())


def length(model, **about):
    return 1 + sum(chain_acceptance(model, [counting_sample(start, **about) for start in range(0, VOCAB, 8)], embed, 3))


@pytest.fixture(scope="module")
def trained():
    """A run from nothing to convergence; tests must not change it."""
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: bench.coordinator.phase is Phase.CONVERGED)
    return bench


def test_nothing_happens_before_there_is_text():
    bench = Bench()
    assert not bench.coordinator.advance()
    bench.feed(10)
    assert not bench.coordinator.advance()
    assert bench.coordinator.phase is Phase.COLLECTING
    bench.feed(20)
    assert bench.coordinator.advance()
    assert bench.coordinator.phase is Phase.TRAINING
    assert bench.built_from


def test_it_learns_publishes_and_converges(trained):
    published = trained.published
    assert [one.version for one in published] == list(range(1, len(published) + 1))
    lengths = [one.acceptance.length for one in published]
    assert lengths == sorted(lengths)
    assert lengths[-1] > 3.5
    assert length(published[-1].model) > 3.5
    assert trained.coordinator.trainer.num_tokens < 200_000
    status = trained.coordinator.status()
    assert status["publications"]["published"] == len(published)
    assert status["live_acceptance_length"] == pytest.approx(lengths[-1])


def test_what_is_published_no_longer_changes(trained):
    model = trained.published[0].model
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert length(model) < length(trained.published[-1].model) + 1e-6
    assert model.fc.weight.data_ptr() != trained.coordinator.trainer.model.fc.weight.data_ptr()


def test_it_is_the_same_again(trained):
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: bench.published)
    first = trained.published[0]
    assert bench.published[0].num_tokens == first.num_tokens
    assert torch.equal(bench.published[0].model.fc.weight, first.model.fc.weight)


def test_a_converged_trainer_rests_until_the_text_drifts():
    bench = Bench()
    bench.feed()
    coordinator = bench.coordinator
    bench.run_until(lambda: coordinator.phase is Phase.CONVERGED)
    steps = coordinator.trainer.num_steps
    bench.feed(6)
    bench.run(40)
    assert not coordinator.advance()
    assert coordinator.trainer.num_steps == steps
    bench.feed(14, by=6)  # less than what would count as new text by its amount
    bench.run_until(lambda: coordinator.trainer.num_steps > steps)
    before = length(bench.published[-1].model, by=6)
    bench.feed(40, by=6)
    bench.run_until(lambda: bench.run(50) or length(bench.published[-1].model, by=6) > before + 0.5, pieces=60)


def test_a_new_target_starts_training_again_on_its_own_text():
    bench = Bench()
    bench.feed()
    coordinator = bench.coordinator
    bench.run_until(lambda: coordinator.phase is Phase.CONVERGED)
    head = coordinator.trainer._head
    assert len(head._log_normalisers) > 0
    coordinator.follow_new_target()
    assert len(head._log_normalisers) == 0, "found with a head that is gone"
    assert coordinator.phase is Phase.TRAINING
    bench.feed(60, by=6, version=1)
    bench.run_until(lambda: length(bench.published[-1].model, by=6) > 3.0)


def test_weights_that_got_much_worse_are_rolled_back():
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: len(bench.published) >= 3)
    coordinator = bench.coordinator
    with torch.no_grad():
        for model in (coordinator.trainer.model, coordinator._average.model):
            model.lm_head.weight.mul_(-1)
    bench.run_until(lambda: coordinator.publisher.num_rolled_back == 1)
    assert len(bench.published) == 3
    assert length(coordinator._average.model) == pytest.approx(length(bench.published[-1].model), abs=0.05)


def test_weights_that_are_no_numbers_are_rolled_back():
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: bench.published)
    coordinator = bench.coordinator
    with torch.no_grad():
        for model in (coordinator.trainer.model, coordinator._average.model):
            model.fc.weight.fill_(float("nan"))
    bench.run_until(lambda: coordinator.trainer.model.fc.weight.isfinite().all())
    assert coordinator._average.model.fc.weight.isfinite().all()
    published = len(bench.published)
    bench.run_until(lambda: len(bench.published) > published)
    fresh = Bench()
    fresh.feed()
    fresh.run(10)
    fresh.coordinator.trainer.model.fc.weight.data.fill_(float("nan"))
    first = fresh.coordinator.trainer
    fresh.run_until(lambda: fresh.coordinator.trainer not in (first, None))


def test_what_fails_in_the_midst_of_a_step_leaves_nothing_of_it(monkeypatch):
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: bench.coordinator._step_tokens)
    trainer = bench.coordinator.trainer
    assert trainer.model.fc.weight.grad is not None
    monkeypatch.setattr(bench.coordinator.buffer, "draw", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.coordinator.advance()
    assert trainer.model.fc.weight.grad is None
    assert bench.coordinator._step_tokens == 0


def test_weights_that_come_before_the_first_step_are_not_replaced_by_what_was_kept(trained):
    last = trained.published[-1]
    bench = Bench(live=last.model, state=snapshot(last.state))
    given = new_trainer().model.requires_grad_(False)
    bench.coordinator.adopt(given)
    bench.build = lambda _: new_trainer()
    bench.feed()
    bench.run_until(lambda: bench.coordinator.trainer is not None)
    assert bench.coordinator.trainer.num_tokens == 0


def test_weights_from_outside_are_gone_on_from(trained):
    bench = Bench()
    bench.feed()
    bench.run(10)
    given = copy.deepcopy(trained.published[-1].model)
    bench.coordinator.adopt(given)
    assert bench.coordinator.drafter_version == 1
    assert torch.equal(bench.coordinator.trainer.model.fc.weight, given.fc.weight)
    bench.run_until(lambda: bench.coordinator.phase is Phase.CONVERGED)
    assert all(one.acceptance.length >= 3.5 for one in bench.published), "nothing worse went live"


def test_it_goes_on_where_an_earlier_run_stopped(trained):
    last = trained.published[-1]
    bench = Bench(live=last.model, state=snapshot(last.state))
    bench.feed()
    bench.run_until(lambda: bench.coordinator.trainer is not None)
    assert bench.coordinator.trainer.num_tokens == last.num_tokens
    assert bench.coordinator.drafter_version == last.version
    assert torch.equal(bench.coordinator._average.model.fc.weight, last.model.fc.weight)
    bench.run_until(lambda: bench.coordinator.phase is Phase.CONVERGED)


def test_a_state_of_another_drafter_is_passed_over():
    state = {"trainer": {"model": {}}, "average": {}, "drafter_version": 0}
    bench = Bench(state=state)
    bench.feed()
    with pytest.raises(Exception, match="Missing key"):
        bench.run(3)
    bench.run_until(lambda: bench.published)
    assert bench.published[0].version == 1


def test_each_piece_is_at_most_a_micro_batch(monkeypatch):
    bench = Bench()
    bench.feed()
    bench.run_until(lambda: bench.coordinator.trainer is not None)
    trainer = bench.coordinator.trainer
    sizes = []
    stock = trainer.accumulate
    monkeypatch.setattr(
        trainer, "accumulate", lambda samples: (sizes.append(sum(map(len, samples))), stock(samples))[1]
    )
    bench.run(60)
    assert max(sizes) <= CONFIG.micro_batch_tokens
    assert len(sizes) > 20


def accepted(length):
    return Accepted((round(1000 * (length - 1)),), 1000)


def test_verdicts():
    publisher = Publisher()
    assert publisher.judge(accepted(1.3), None) is Verdict.GO_ON, "a drafter must be worth its time before it drafts"
    assert publisher.judge(Accepted((0,), 0), None) is Verdict.GO_ON, "without held-out text nothing is published"
    assert publisher.judge(Accepted((0,), 0), Accepted((0,), 0)) is Verdict.GO_ON
    assert publisher.judge(accepted(1.5), None) is Verdict.PUBLISH
    assert publisher.judge(accepted(1.49), accepted(1.5)) is Verdict.GO_ON
    assert publisher.judge(accepted(1.5), accepted(1.5)) is Verdict.PUBLISH
    assert publisher.judge(accepted(1.4), accepted(1.5)) is Verdict.ROLL_BACK
    assert publisher.counts() == {"published": 2, "rolled_back": 1, "not_better": 5}


def test_a_drafter_that_is_not_good_enough_yet_has_not_converged():
    publisher = Publisher()
    for number in range(3 * PATIENCE):
        assert publisher.judge(accepted(1.01 + number / 50), None) is Verdict.GO_ON
        assert not publisher.has_converged
    for _ in range(PATIENCE):
        publisher.judge(accepted(1.3), None)
    assert publisher.has_converged


def test_convergence_is_when_nothing_gets_better_for_a_while():
    publisher = Publisher()
    for _ in range(5 * PATIENCE):
        publisher.judge(accepted(1.504), accepted(1.5))  # small gains add up
        assert not publisher.has_converged
    publisher.start_over()
    for number in range(PATIENCE):
        assert not publisher.has_converged, number
        publisher.judge(accepted(1.7), accepted(1.7 + 0.01 * (number % 2)))
    assert publisher.has_converged
    publisher.start_over()
    assert not publisher.has_converged
