"""Methods that tests add to the worker with ``worker_extension_cls``."""

import hashlib
import time
from pathlib import Path

import msgspec
import pytest

from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter_trainer.publisher import Verdict
from tlt_engine.spec.strategy import Capacity, read_strategies


class Spoiler:
    """Breaks things inside a running engine."""

    def spoil_drafter(self) -> None:
        """Makes the learned drafter's outputs no numbers, as an external trainer's bad push would."""
        self.model_runner.drafter._runtime._model.norm.weight.fill_(float("nan"))


class Switch:
    """Changes what a fixed policy does."""

    def set_strategy(self, drafter: str) -> None:
        """Takes another drafter, as deep and wide as there is room for."""
        self._use(read_strategies([{"drafter": drafter}], self._capacity())[0])

    def set_width(self, num_tokens: int) -> None:
        """Drafts so many tokens with the user's drafter."""
        capacity = self._capacity()
        wanted = {"drafter": "own", "verify_width": 1 + num_tokens} if num_tokens else {"drafter": "none"}
        self._use(read_strategies([wanted], capacity)[0])

    def _capacity(self) -> Capacity:
        return Capacity(drafters=self.model_runner.drafter.drafters.names, max_nodes=15, max_depth=4, max_top_k=4)

    def _use(self, strategy) -> None:
        self.model_runner.drafter.adaptive.selector._strategy = strategy


class TrainingObserver:
    """Looks at the target and the trainer inside a running engine."""

    def remember_target(self) -> None:
        """Takes a fingerprint of the target's weights."""
        self.target_before = self._fingerprint()

    def check_target(self) -> None:
        """Fails if the target's weights changed, or the drafter holds an embedding of its own."""
        assert self._fingerprint() == self.target_before
        proposer = self.model_runner.drafter
        embedding = self.model_runner.model.model.embed_tokens.weight
        assert proposer._embedding._target is self.model_runner.model
        assert proposer._embedding.num_bytes() == 0
        assert (
            proposer.training._origin._target.lm_head.weight.data_ptr()
            == self.model_runner.model.lm_head.weight.data_ptr()
        )
        assert not any("embed" in name for name, _ in proposer._runtime._model.named_parameters())
        assert not embedding.requires_grad
        assert embedding.grad is None

    def publish_often(self, first: str, second: str, times: int) -> None:
        """Publishes two drafters in turn."""
        for _ in range(times):
            self.tlt_publish(first)
            self.tlt_publish(second)

    def wait_for_steps(self, num_steps: int) -> None:
        """Lets the trainer take so many optimizer steps more."""
        wanted = self._status()["steps"] + num_steps
        self._wait_until(lambda: self._status()["steps"] >= wanted)

    def wait_for_version(self, version: int) -> None:
        """Lets the trainer publish."""
        self._wait_until(lambda: self.model_runner.drafter.drafter_version >= version)

    def learn_by_heart(self) -> None:
        """Lets the gate judge by what is trained on: of random text nothing holds for other text."""
        coordinator = self.model_runner.drafter.training.coordinator
        coordinator._held_out = lambda: [entry.sample for entry in coordinator.buffer._learnt.entries[:8]]

    def publish_every_step(self) -> None:
        """Lets every optimizer step go live and be kept."""
        coordinator = self.model_runner.drafter.training.coordinator
        sizes = {"step_tokens": 64, "first_tokens": 64, "evaluation_tokens": (1, 1), "held_out_tokens": 64}
        coordinator._config = msgspec.structs.replace(coordinator._config, **sizes)
        coordinator.publisher.judge = lambda *_: Verdict.PUBLISH

    def break_training(self) -> None:
        """Lets whatever the trainer does next fail, and waits for that."""

        def fail():
            raise RuntimeError("broken by a test")

        self.model_runner.drafter.training._thread._advance = fail
        self._wait_until(lambda: self._status()["failures"] > 0)

    def _status(self):
        return self.model_runner.drafter.training.status()

    def _wait_until(self, is_true) -> None:
        """Waits while the engine does nothing, between two steps."""
        deadline = time.monotonic() + 400  # a thread of lowest priority waits for everybody else
        while not is_true():
            assert time.monotonic() < deadline, self._status()
            time.sleep(0.01)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, parameter in sorted(self.model_runner.model.named_parameters()):
            digest.update(name.encode())
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


class ExternalTrainer:
    """Pushes weights through vLLM's own calls, by a transfer that reads a file."""

    def use_file_transfer(self) -> None:
        """Puts a weight transfer engine in place, as ``weight_transfer_config`` would."""
        self.weight_transfer_engine = FileTransfer(self.model_runner.get_model())

    def push_drafter(self, directory: str, num_chunks: int, finishes: bool = True) -> None:
        """Sends a drafter in chunks."""
        assert self.supports_draft_weight_updates()
        self.start_draft_weight_update()
        for chunk in range(num_chunks):
            self.update_weights({"directory": directory, "chunk": chunk, "num_chunks": num_chunks})
        if finishes:
            self.finish_weight_update()
        else:
            self._weight_update_active = False

    def push_half(self, directory: str) -> None:
        """Sends half a drafter and ends the update; that must be refused."""
        self.start_draft_weight_update()
        self.update_weights({"directory": directory, "chunk": 0, "num_chunks": 2})
        with pytest.raises(ValueError, match="missing"):
            self.finish_weight_update()


class FileTransfer:
    """As much of vLLM's ``WeightTransferEngine`` as its worker calls; vLLM's own ones need CUDA."""

    supports_draft_weight_update = True

    def __init__(self, target):
        self.model = self._target = target

    def set_weight_update_target(self, model, config):
        self.model = model

    def reset_weight_update_target(self):
        self.model = self._target

    def start_weight_update(self):
        pass

    def finish_weight_update(self):
        pass

    def update_weights(self, info):
        tensors = sorted(load_checkpoint(Path(info["directory"])).tensors.items())
        self.model.load_weights(tensors[info["chunk"] :: info["num_chunks"]])
