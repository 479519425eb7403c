"""Attention over the ring and the scratch, by the op and by matrix products, against a sum over what is seen."""

import random

import pytest
import torch

from drafter.small import small_drafter
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.key_cache import KeyCache

WINDOW, NUM_SCRATCH, NUM_SLOTS, NUM_HEADS, NUM_KV_HEADS = 24, 6, 3, 6, 2


def config(head_dim):
    model = small_drafter()
    settings = {name: getattr(model.config, name) for name in DrafterConfig.__struct_fields__}
    shape = {"head_dim": head_dim, "num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS}
    return DrafterConfig(**settings | shape | {"window": WINDOW})


class Kept:
    """What a slot was given, position by position, and its tree nodes, newest level first."""

    def __init__(self, head_dim, generator):
        self.head_dim, self.generator = head_dim, generator
        self.window = {}
        self.nodes = []

    def draw(self, *shape):
        return torch.randn(*shape, self.head_dim, generator=self.generator, dtype=torch.float64)

    def attend(self, query_NH, visible_S, first_seen):
        seen = [pair for position, pair in self.window.items() if position >= first_seen]
        seen += [pair for pair, sees in zip(self.nodes, visible_S.tolist(), strict=True) if sees]
        keys, values = (torch.stack(part) for part in zip(*seen, strict=True))
        heads = []
        for head, query in enumerate(query_NH):
            kv_head = head * NUM_KV_HEADS // NUM_HEADS
            weights = (keys[:, kv_head] @ query / self.head_dim**0.5).softmax(0)
            heads.append(weights @ values[:, kv_head])
        return torch.stack(heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["op", "products"])
@pytest.mark.parametrize("head_dim", [6, 64, 80])
@pytest.mark.parametrize("start", [0, 5, 100])
@pytest.mark.parametrize("length", [1, 17, WINDOW, 3 * WINDOW])
def test_attention_sees_the_window_and_the_branch(length, start, head_dim, dtype):
    generator = torch.Generator().manual_seed(length + start)
    draw = random.Random(length)
    cache = KeyCache(config(head_dim), NUM_SLOTS, NUM_SCRATCH, dtype=dtype)
    slots = [2, 0]
    kept = [Kept(head_dim, generator) for _ in slots]
    for one, slot in zip(kept, slots, strict=True):
        end = start + length + slot
        position = cache.missing(slot, start, start + 1) if end - start <= WINDOW else start
        assert position == start
        while position < end:
            count = min(draw.randrange(1, 5), end - position)
            keys, values = one.draw(count, NUM_KV_HEADS), one.draw(count, NUM_KV_HEADS)
            positions = torch.arange(position, position + count)
            cache.put(torch.full((count,), slot), positions, keys.to(dtype), values.to(dtype))
            cache.advance(slot, position + count)
            one.window |= {
                place: pair for place, pair in zip(positions.tolist(), zip(keys, values, strict=True), strict=True)
            }
            position += count
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for depth in range(3):
        visible = torch.zeros(2, 2 if depth else 1, 2 * depth, dtype=torch.bool)
        if depth:
            keys, values = (torch.stack([one.draw(2, NUM_KV_HEADS) for one in kept]) for _ in ("keys", "values"))
            cache.put_scratch(torch.tensor(slots), keys.to(dtype), values.to(dtype), 2 * (depth - 1))
            for place, one in enumerate(kept):
                one.nodes = list(zip(keys[place], values[place], strict=True)) + one.nodes
            visible = torch.rand(visible.shape, generator=generator) < 0.5
            visible[:, :, :2] = torch.eye(2, dtype=torch.bool)
        query = torch.stack([one.draw(visible.shape[1], NUM_HEADS) for one in kept])
        found = cache.attend(slots, query.to(dtype), visible, depth)
        for place, (one, slot) in enumerate(zip(kept, slots, strict=True)):
            for node in range(visible.shape[1]):
                first_seen = start + length + slot + depth - WINDOW
                expected = one.attend(query[place, node], visible[place, node], first_seen)
                assert torch.allclose(found[place, node].double(), expected, atol=tolerance)


def test_keys_before_a_gap_are_dropped():
    cache = KeyCache(config(6), NUM_SLOTS, NUM_SCRATCH, dtype=torch.float64)
    assert cache.missing(1, 0, 4) == 0
    cache.advance(1, 4)
    assert cache.missing(1, 0, 9) == 4
    assert cache.missing(1, 6, 9) == 6, "features between are not known"
    cache.advance(1, 9)
    assert cache.missing(1, 6, 8) == 6, "the request went back"
    cache.advance(1, 8)
    cache.forget(1)
    assert cache.missing(1, 6, 8) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["op", "products"])
def test_keys_that_were_no_numbers_leave_nothing_behind(dtype):
    cache = KeyCache(config(6), NUM_SLOTS, NUM_SCRATCH, dtype=dtype)
    nothing = torch.full((5, NUM_KV_HEADS, 6), float("nan"), dtype=dtype)
    cache.put(torch.zeros(5, dtype=torch.long), torch.arange(5), nothing, nothing)
    cache.advance(0, 5)
    cache.forget()
    assert cache.missing(0, 7, 8) == 7  # features begin late, as after a cached prefix: the places before are not seen
    ones = torch.ones(1, NUM_KV_HEADS, 6, dtype=dtype)
    cache.put(torch.tensor([0]), torch.tensor([7]), ones, ones)
    cache.advance(0, 8)
    query = torch.ones(1, 1, NUM_HEADS, 6, dtype=dtype)
    assert torch.allclose(cache.attend([0], query, torch.ones(1, 1, 0, dtype=torch.bool), 0), torch.ones_like(query))
