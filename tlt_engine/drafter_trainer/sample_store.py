"""Samples on disk, in files that are written whole: so that a warm-up that was stopped goes on where it was."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tlt_engine.drafter_trainer.sample import Sample

FIELDS = ("token_ids", "features", "final_hidden")


class SampleStore:
    """A directory of sample files, one a round of generation."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def num_rounds(self) -> int:
        """Rounds that are there, counted from the first without a gap."""
        return next(number for number in range(1 << 30) if not self._file(number).exists())

    def add(self, samples: Sequence[Sample], dtype: torch.dtype) -> None:
        """Writes a round.

        Args:
            samples: what it produced.
            dtype: what hidden states are stored as.
        """
        tensors = {}
        about = []
        for place, sample in enumerate(samples):
            for field in FIELDS:
                tensor = getattr(sample, field)
                tensors[f"{place}.{field}"] = (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
            about.append(
                {
                    "req_id": sample.req_id,
                    "first_position": sample.first_position,
                    "num_prompt_tokens": sample.num_prompt_tokens,
                    "target_version": sample.target_version,
                }
            )
        file = self._file(self.num_rounds)
        partial = file.with_suffix(".partial")
        save_file(tensors, partial, {"samples": json.dumps(about)})
        partial.replace(file)

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self.num_rounds):
            with safe_open(self._file(number), framework="pt") as file:
                for place, about in enumerate(json.loads(file.metadata()["samples"])):
                    yield Sample(**about, **{field: file.get_tensor(f"{place}.{field}") for field in FIELDS})

    def clear(self) -> None:
        """Deletes the files."""
        for file in self._directory.glob("round-*"):
            file.unlink()
        self._directory.rmdir()

    def _file(self, number: int) -> Path:
        return self._directory / f"round-{number:04d}.safetensors"
