"""A drafter that is not whole, or another target's, is refused by name before it serves."""

import json
from types import SimpleNamespace

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from drafter.small import HIDDEN, TARGET, VOCAB, Tokenizer, provenance, small_drafter
from tlt_engine.drafter.checkpoint import (
    FILE_NAME,
    check_fits_target,
    load_checkpoint,
    save_checkpoint,
)


def rewrite(directory, change):
    """Changes tensors and metadata of a checkpoint in place, as a tool of somebody else might."""
    path = directory / FILE_NAME
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def test_what_was_saved_comes_back(directory):
    model = small_drafter().float()
    checkpoint = load_checkpoint(directory)
    assert checkpoint.config == model.config
    assert checkpoint.provenance == provenance(model)
    assert checkpoint.provenance.held_out_acceptance_length == 1.75
    again = checkpoint.build()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert [path.name for path in directory.iterdir()] == [FILE_NAME], "something was left behind"
    check_fits_target(checkpoint, TARGET, Tokenizer(), "drafter")


def test_a_write_that_fails_leaves_the_old_file(directory, monkeypatch):
    before = (directory / FILE_NAME).read_bytes()
    monkeypatch.setattr("tlt_engine.drafter.whole_file.os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    model = small_drafter(seed=9).float()
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(directory, model, provenance(model))
    assert (directory / FILE_NAME).read_bytes() == before
    assert [path.name for path in directory.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("where", ["nothing", "header", "tensor", "last byte"])
def test_a_cut_file_is_refused(directory, where):
    path = directory / FILE_NAME
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    length = {"nothing": 0, "header": header // 2, "tensor": (header + len(whole)) // 2, "last byte": len(whole) - 1}
    path.write_bytes(whole[: length[where]])
    with pytest.raises(ValueError, match=rf"{FILE_NAME}: cut or damaged"):
        load_checkpoint(directory)


def test_a_flipped_bit_is_refused(directory):
    path = directory / FILE_NAME
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 0x04
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum|not finite"):
        load_checkpoint(directory)


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match=rf"no drafter here, expected the file {FILE_NAME}"):
        load_checkpoint(tmp_path)


CHANGES = {
    "norm.weight has dtype torch.int32": lambda tensors, _: tensors.update(
        {"norm.weight": tensors["norm.weight"].int()}
    ),
    "d2t has dtype torch.int32": lambda tensors, _: tensors.update(d2t=tensors["d2t"].int()),
    "others torch.float32": lambda tensors, _: tensors.update({"norm.weight": tensors["norm.weight"].half()}),
    "norm.weight has shape": lambda tensors, _: tensors.update({"norm.weight": tensors["norm.weight"][:-1]}),
    "missing \\['norm.weight'\\]": lambda tensors, _: tensors.pop("norm.weight"),
    "unknown \\['model.layers.0.mlp'\\]": lambda tensors, _: tensors.update({"model.layers.0.mlp": torch.zeros(1)}),
    "norm.weight holds numbers that are not finite": lambda tensors, _: tensors["norm.weight"].fill_(float("nan")),
    "d2t does not name": lambda tensors, _: tensors["d2t"].fill_(-3),
    "checksum": lambda tensors, _: tensors["norm.weight"].mul_(1.5),
    "expected format 'tlt-engine-drafter-1', got None": lambda _, metadata: metadata.pop("format"),
    "unreadable description": lambda _, metadata: metadata.update(config="{"),
    "unreadable description: Object contains unknown field `windows`": lambda _, metadata: metadata.update(
        config=json.dumps(json.loads(metadata["config"]) | {"windows": 3})
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_file_that_somebody_changed_is_refused(directory, message):
    rewrite(directory, CHANGES[message])
    with pytest.raises(ValueError, match=message):
        load_checkpoint(directory)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", VOCAB + 8, rf"vocabulary size {VOCAB}, but this target has {VOCAB + 8}"),
        ("hidden_size", 2 * HIDDEN, f"hidden size {HIDDEN}, but this target has {2 * HIDDEN}"),
        ("num_hidden_layers", 5, "number of layers 4, but this target has 5"),
        ("model_type", "qwen3", "model type llama, but this target has qwen3"),
    ],
)
def test_another_target_is_named(directory, key, value, message):
    other = SimpleNamespace(**vars(TARGET) | {key: value})
    with pytest.raises(ValueError, match=f"drafter: made for 'target' with {message}"):
        check_fits_target(load_checkpoint(directory), other, Tokenizer(), "drafter")


def test_another_vocabulary_of_the_same_size_is_named_by_its_first_token(directory):
    with pytest.raises(ValueError, match="token 22 is 't22' there and 'x22' here"):
        check_fits_target(load_checkpoint(directory), TARGET, Tokenizer("x"), "drafter")


def test_provenance_is_plain_json(directory):
    with safe_open(directory / FILE_NAME, framework="pt") as file:
        assert msgspec.json.decode(file.metadata()["provenance"])["target"]["name"] == "target"
