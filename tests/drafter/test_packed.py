"""Packed matrices give what plain ones give, and what is packed is counted."""

import copy

import pytest
import torch

from drafter.small import FAMILIES, HIDDEN, NUM_AUX, small_drafter
from tlt_engine.drafter.model import Norm, Projection
from tlt_engine.drafter.packed import pack

TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


def run(model, dtype):
    generator = torch.Generator().manual_seed(0)
    features, embedding = (
        torch.randn(5, size, generator=generator, dtype=torch.float64).to(dtype) for size in (NUM_AUX * HIDDEN, HIDDEN)
    )

    def attend(query, key, value):
        groups = query.shape[1] // key.shape[1]
        keys, values = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        return torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
        ).transpose(0, 1)

    hidden = model.fuse(features)
    return model.logits(model(embedding, hidden, model.rotary(hidden, torch.arange(5)), attend))


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_drafter_gives_the_same_logits(family, precision):
    model = small_drafter(family)
    expected = run(model, torch.float64)
    packed = copy.deepcopy(model).float()
    pack(packed, precision)
    assert not any(isinstance(module, Projection) for module in packed.modules()), "all matrices are packed"
    found = run(packed, torch.float32)
    assert found.dtype == torch.float32
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[precision]
    assert precision == "float32" or error > TOLERANCE["float32"], "bfloat16 was asked for"


def test_bytes_are_those_of_the_packed_weights():
    model = small_drafter("qwen2").float()
    plain = sum(parameter.nbytes for parameter in model.parameters())
    projections = [module for module in model.modules() if isinstance(module, Projection)]
    halved = sum(parameter.nbytes for module in projections for parameter in module.parameters())
    assert pack(copy.deepcopy(model), "float32") == plain
    assert pack(model, "bfloat16") == plain - halved // 2


def test_float64_stays_as_it_is():
    model = small_drafter()
    pack(model, "auto")
    assert torch.equal(run(model, torch.float64), run(small_drafter(), torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_survive_large_activations(dtype):
    norm = Norm(8, eps=1e-5).to(dtype)
    large = torch.tensor([1000.0, 1, 2, 3, 4, 5, 6, 7])
    expected = torch.nn.functional.rms_norm(large, (8,), eps=1e-5)
    assert torch.allclose(norm(large.to(dtype)).float(), expected, rtol=1e-2)
