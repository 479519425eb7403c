"""What the trainer learns from while serving goes on: the latest responses, within a cap of bytes.

Source: the Online DataBuffer of TLT (arXiv:2511.16665): newest target first, the step before fills in what the current
one lacks, long responses before short ones.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tlt_engine.drafter_trainer.sample import Sample

HELD_OUT_EVERY = 12
"""One group of so many is held out."""

SHORT_OF_TEXT = 512
"""Tokens to learn from after which something must be held out, whatever the groups are called."""

FEWEST_HELD_OUT_TOKENS = 512
"""Of the newest target, before earlier ones' text is no longer judged by."""

MOST_SAMPLE_TOKENS = 2048
"""Longer samples would need more memory in training than they are worth; the recorder leaves spans."""

HELD_OUT_SHARE = 0.125
"""Share of the bytes that held-out samples may have."""


@dataclass(eq=False)
class _Entry:
    sample: Sample
    num_draws: int = 0


class _Shelf:
    """Samples within a cap; what is worth least makes room."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.entries: list[_Entry] = []

    def add(self, entry: _Entry) -> list[_Entry]:
        """Adds one that fits, and returns what had to go."""
        dropped = []
        while self.num_bytes + entry.sample.num_bytes() > self.max_bytes:
            dropped.append(min(self.entries, key=_worth))
            self.remove(dropped[-1])
        self.entries.append(entry)
        self.num_bytes += entry.sample.num_bytes()
        return dropped

    def remove(self, entry: _Entry) -> None:
        self.entries.remove(entry)
        self.num_bytes -= entry.sample.num_bytes()

    def samples_of(self, target_version: int) -> list[Sample]:
        return [entry.sample for entry in self.entries if entry.sample.target_version == target_version]


class SampleBuffer:
    """Keeps samples, draws them for training, and holds some out that no training sees.

    Samples are drawn in passes: within one, none comes twice. A pass takes the newest target's samples, and then the
    long ones of the target before; the newest and the longest come first.
    """

    def __init__(self, max_bytes: int) -> None:
        """Starts empty.

        Args:
            max_bytes: cap on the tensors of everything kept.
        """
        self.max_bytes = max_bytes
        self.num_tokens_added = 0
        """Tokens to learn from that ever came in."""
        self.num_dropped: Counter[str] = Counter()
        """Samples that were not kept or kept no longer, by reason."""
        held_out_bytes = int(max_bytes * HELD_OUT_SHARE)
        self._learnt = _Shelf(max_bytes - held_out_bytes)
        self._held_out = _Shelf(held_out_bytes)
        self._pass: list[_Entry] = []
        self._learnt_groups, self._held_out_groups = _Marks(), _Marks()

    def __len__(self) -> int:
        return len(self._learnt.entries)

    def __iter__(self) -> Iterator[Sample]:
        return (entry.sample for entry in self._learnt.entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of everything kept."""
        return self._learnt.num_bytes + self._held_out.num_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens of the samples that can be drawn."""
        return sum(len(entry.sample) for entry in self._learnt.entries)

    @property
    def target_version(self) -> int:
        """The newest target version among what can be drawn; -1 if nothing can."""
        return max((entry.sample.target_version for entry in self._learnt.entries), default=-1)

    def add(self, sample: Sample) -> bool:
        """Keeps a sample, and drops older ones if there is no room.

        All samples of a group are held out or none.

        Args:
            sample: what a request left behind.

        Returns:
            Whether it was kept.
        """
        if sample.num_learnt() < 1:
            self.num_dropped["nothing to learn"] += 1
            return False
        if len(sample) > MOST_SAMPLE_TOKENS:
            self.num_dropped["too long"] += 1
            return False
        is_held_out = self._is_held_out(sample)
        shelf = self._held_out if is_held_out else self._learnt
        if sample.num_bytes() > shelf.max_bytes:
            self.num_dropped["larger than the buffer"] += 1
            return False
        entry = _Entry(sample)
        for dropped in shelf.add(entry):
            self.num_dropped["no room" if dropped.num_draws or is_held_out else "no room, never drawn"] += 1
            if dropped in self._pass:
                self._pass.remove(dropped)
        if not is_held_out:
            self.num_tokens_added += len(sample)
            self._pass.append(entry)
        return True

    def draw(self, max_tokens: int) -> list[Sample]:
        """Returns the samples of one micro-batch, at least one if there is any.

        Args:
            max_tokens: samples are added while they fit.
        """
        if not self._pass:
            self._pass = self._next_pass()
        newest = self.target_version
        self._pass.sort(key=lambda entry: (newest - entry.sample.target_version, entry.num_draws, -len(entry.sample)))
        drawn: list[_Entry] = []
        room = max_tokens
        for entry in self._pass:
            if not drawn or len(entry.sample) <= room:
                drawn.append(entry)
                room -= len(entry.sample)
            if room <= 0:
                break
        for entry in drawn:
            entry.num_draws += 1
            self._pass.remove(entry)
        return [entry.sample for entry in drawn]

    def held_out(self) -> list[Sample]:
        """Returns the held-out samples of the newest target, the latest last; all while those are too few."""
        current = self._held_out.samples_of(self.target_version)
        if sum(map(len, current)) >= FEWEST_HELD_OUT_TOKENS:
            return current
        return [entry.sample for entry in self._held_out.entries]

    def clear(self) -> None:
        """Drops everything."""
        for shelf in (self._learnt, self._held_out):
            self.num_dropped["cleared"] += len(shelf.entries)
            shelf.entries.clear()
            shelf.num_bytes = 0
        self._pass.clear()

    def _is_held_out(self, sample: Sample) -> bool:
        """Decides by the group's name, so that a group that comes back goes where it went; and takes a group that was
        never trained on where names alone leave too little."""
        group = zlib.crc32((sample.group or sample.req_id).encode())
        num_held_out = sum(len(entry.sample) for entry in self._held_out.entries)
        wanted = self.num_tokens // (2 * HELD_OUT_EVERY) if self.num_tokens >= SHORT_OF_TEXT else 0
        is_short = num_held_out < wanted and group not in self._learnt_groups
        if group % HELD_OUT_EVERY == 0 or group in self._held_out_groups or is_short:
            self._held_out_groups.add(group)
            return True
        self._learnt_groups.add(group)
        return False

    def _next_pass(self) -> list[_Entry]:
        """Everything of the newest target; of those before the longest, while that is no more than as much again."""
        newest = self.target_version
        current = [entry for entry in self._learnt.entries if entry.sample.target_version == newest]
        earlier = [entry for entry in self._learnt.entries if entry.sample.target_version < newest]
        earlier.sort(key=lambda entry: (-entry.sample.target_version, -len(entry.sample)))
        room = sum(len(entry.sample) for entry in current)
        filled: list[_Entry] = []
        for entry in earlier:
            if len(entry.sample) > room:
                break
            filled.append(entry)
            room -= len(entry.sample)
        return current + filled


class _Marks:
    """Remembers numbers in fixed memory; one in millions may be taken for another."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << 19)

    def add(self, number: int) -> None:
        place = number % (len(self._bits) * 8)
        self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, number: int) -> bool:
        place = number % (len(self._bits) * 8)
        return bool(self._bits[place >> 3] & (1 << (place & 7)))


def _worth(entry: _Entry) -> tuple[int, int, int]:
    """Worth least is the oldest target's, then what was drawn most, then the shortest."""
    return entry.sample.target_version, -entry.num_draws, len(entry.sample)
