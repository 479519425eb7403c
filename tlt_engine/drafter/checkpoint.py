"""A drafter on disk: one safetensors file with the weights, the configuration and where they came from.

One file, so that a rename replaces weights and description together. A file that is not whole, not finite or not made
for the target is refused by name: a wrong drafter would serve correctly and slowly, and nobody would notice.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.whole_file import write_whole

FILE_NAME = "drafter.safetensors"
FORMAT = "tlt-engine-drafter-1"

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TargetIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one target from another of the same shape."""

    name: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    draft_tokens: tuple[str, ...]
    """Text of the tokens that can be drafted, by draft index."""

    @classmethod
    def of(
        cls,
        name: str,
        config: PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase | None,
        draft_vocabulary: Tensor,
    ) -> "TargetIdentity":
        """Describes a target.

        Args:
            name: what the user calls it; a directory's last part.
            config: its configuration.
            tokenizer: its tokenizer; None if it has none.
            draft_vocabulary: ``[draft_vocab]`` int64. Token ids that can be drafted.
        """
        token_ids = draft_vocabulary.tolist()
        tokens = tokenizer.convert_ids_to_tokens(token_ids) if tokenizer is not None else [""] * len(token_ids)
        return cls(
            name=Path(name).name,
            model_type=config.model_type,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            draft_tokens=tuple(token or "" for token in tokens),
        )


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where weights came from."""

    target: TargetIdentity
    recipe: str
    num_tokens_seen: int
    num_steps: int
    held_out: str = ""
    """What the acceptance was measured on."""
    held_out_acceptance_rates: tuple[float, ...] = ()
    """Acceptance rate at each depth of a greedy chain; ``1 + sum`` is the acceptance length."""
    engine_version: str = ""

    @property
    def held_out_acceptance_length(self) -> float:
        """Mean tokens a step, bonus included."""
        return 1.0 + sum(self.held_out_acceptance_rates)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint read back."""

    config: DrafterConfig
    provenance: Provenance
    tensors: dict[str, Tensor]

    def build(self) -> DrafterModel:
        """Returns the drafter with these weights, in the dtype they were stored in."""
        model = DrafterModel(self.config).to(self.tensors["fc.weight"].dtype)
        model.load_state_dict(self.tensors)
        return model


def save_checkpoint(directory: Path, model: DrafterModel, provenance: Provenance) -> Path:
    """Writes a drafter; a reader sees the old file or the new one, never a part.

    Args:
        directory: made if it is not there.
        model: the drafter.
        provenance: where its weights came from.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written; what was there before is intact.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "config": msgspec.json.encode(model.config).decode(),
        "provenance": msgspec.json.encode(provenance).decode(),
        "sha256": _checksum(tensors),
    }
    contents = save(tensors, metadata)
    write_whole(directory / FILE_NAME, lambda file: file.write(contents))
    return directory / FILE_NAME


def load_checkpoint(directory: Path) -> Checkpoint:
    """Reads a drafter and checks that it is whole.

    Raises:
        ValueError: the file is missing, cut, damaged, of another format, or holds other tensors than its configuration
            says, or numbers that are not finite; the text names the file and what is wrong.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        raise ValueError(f"{directory}: no drafter here, expected the file {FILE_NAME}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cut or damaged, read an earlier checkpoint instead: {error}") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT!r}, got {metadata.get('format')!r}")
    try:
        config = msgspec.json.decode(metadata.get("config", ""), type=DrafterConfig)
        provenance = msgspec.json.decode(metadata.get("provenance", ""), type=Provenance)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: unreadable description: {error}") from None
    check_tensors(str(path), config, tensors)
    if _checksum(tensors) != metadata.get("sha256"):
        raise ValueError(f"{path}: damaged, the checksum of its weights is not the stored one")
    return Checkpoint(config=config, provenance=provenance, tensors=tensors)


def check_fits_target(
    checkpoint: Checkpoint, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None, where: str
) -> None:
    """Checks that a drafter was made for a target.

    Weights of the target may differ: reinforcement learning changes them, and the drafter follows.

    Args:
        checkpoint: the drafter.
        config: the target's configuration.
        tokenizer: the target's tokenizer; None if it is served without one, then tokens are not compared.
        where: names the drafter in the error.

    Raises:
        ValueError: shape, layers or vocabulary are another target's.
    """
    made_for = checkpoint.provenance.target
    for what, expected, found in (
        ("vocabulary size", config.vocab_size, checkpoint.config.vocab_size),
        ("hidden size", config.hidden_size, checkpoint.config.target_hidden_size),
        ("number of layers", config.num_hidden_layers, made_for.num_layers),
        ("model type", config.model_type, made_for.model_type),
    ):
        if expected != found:
            raise ValueError(
                f"{where}: made for {made_for.name!r} with {what} {found}, but this target has {expected}; "
                "train a drafter for it with 'tlt-engine warmup'"
            )
    if checkpoint.config.aux_layer_ids[-1] > config.num_hidden_layers:
        raise ValueError(f"{where}: reads layer {checkpoint.config.aux_layer_ids[-1]}, the target has fewer")
    if tokenizer is None:
        return
    vocabulary = checkpoint.tensors["d2t"] + torch.arange(checkpoint.config.draft_vocab_size)
    tokens = tokenizer.convert_ids_to_tokens(vocabulary.tolist())
    for token_id, expected, found in zip(vocabulary.tolist(), tokens, made_for.draft_tokens, strict=True):
        if (expected or "") != found:
            raise ValueError(
                f"{where}: made for another vocabulary; token {token_id} is {found!r} there and {expected!r} here"
            )


def check_tensors(where: str, config: DrafterConfig, tensors: Mapping[str, Tensor]) -> None:
    """Checks that tensors are those of a drafter of one shape.

    Args:
        where: names their source in the error.
        config: the shape.
        tensors: by name.

    Raises:
        ValueError: names, shapes or dtypes are others, a number is not finite, or the draft vocabulary is none.
    """
    with torch.device("meta"):
        wanted = DrafterModel(config).state_dict()
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(f"{where}: other tensors than a drafter's; missing {missing[:3]}, unknown {unknown[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(f"{where}: {name} has shape {list(tensor.shape)}, expected {list(wanted[name].shape)}")
        is_float = wanted[name].is_floating_point()
        if (is_float and tensor.dtype not in DTYPES) or (not is_float and tensor.dtype != wanted[name].dtype):
            raise ValueError(f"{where}: {name} has dtype {tensor.dtype}, expected {wanted[name].dtype}")
        if is_float and tensor.dtype != tensors["fc.weight"].dtype:
            raise ValueError(f"{where}: {name} has dtype {tensor.dtype}, the others {tensors['fc.weight'].dtype}")
        if is_float and not bool(tensor.isfinite().all()):
            raise ValueError(f"{where}: {name} holds numbers that are not finite")
    vocabulary = tensors["d2t"] + torch.arange(config.draft_vocab_size)
    if not bool(((vocabulary >= 0) & (vocabulary < config.vocab_size)).all() and (vocabulary.diff() > 0).all()):
        raise ValueError(f"{where}: d2t does not name {config.draft_vocab_size} tokens of {config.vocab_size}")


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
