"""A drafter in the formats of stock engines, as their loaders read them.

Layer ids: vLLM and speculators count hidden states after ``k`` layers, SGLang counts layers from 0 and adds 1 itself.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tlt_engine.drafter.checkpoint import Checkpoint

FORMATS = ("vllm", "sglang", "speculators")
SPECULATIVE_TOKENS = 4
"""What an export suggests to engines that ask the checkpoint for a draft length."""


def export(
    checkpoint: Checkpoint, directory: Path, *, to: str, target: str | None = None, embedding: Tensor | None = None
) -> None:
    """Writes a drafter for another engine; the directory appears whole or not at all.

    Args:
        checkpoint: the drafter.
        directory: where to; must not exist or be empty.
        to: one of ``FORMATS``.
        target: name or path of the target, which a speculators file points to; None for the name it was trained with.
        embedding: ``[vocab, hidden]``. The target's; speculators wants it in the file, the others share the target's.

    Raises:
        ValueError: the format is unknown or cannot hold this drafter, or the directory holds something.
    """
    if to not in FORMATS:
        raise ValueError(f"--to: expected one of {list(FORMATS)}, got {to!r}")
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} holds something already; name an empty directory")
    config = checkpoint.config
    if to == "sglang" and (config.attention_bias or config.qk_norm):
        what = "biases of q, k and v" if config.attention_bias else "norms of queries and keys"
        raise ValueError(f"SGLang's EAGLE-3 drafter has no {what}, so this one cannot be exported to it")
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
    if to == "speculators":
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        assert embedding is not None
        tensors["embed_tokens.weight"] = embedding.to(tensors["fc.weight"].dtype).contiguous()
        description = _speculators_config(checkpoint, target or checkpoint.provenance.target.name)
    else:
        description = _plain_config(checkpoint)
        if to == "vllm" and config.draft_vocab_size == config.vocab_size:
            del tensors["d2t"], tensors["t2d"]  # vLLM has no place for a map that changes nothing
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as temporary:
        written = Path(temporary) / "export"
        written.mkdir()
        save_file(tensors, written / "model.safetensors", {"format": "pt"})
        (written / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        if directory.exists():
            directory.rmdir()
        written.rename(directory)


def _layer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The layer in transformers' words; ``rope_theta`` and ``rope_scaling`` are for readers of the older form."""
    config = checkpoint.config
    rope = dict(config.rope_parameters)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    model_type = "qwen3" if config.qk_norm else "llama"
    return {
        "model_type": model_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_parameters": rope,
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": None if rope.get("rope_type") == "default" else scaling,
        "vocab_size": config.vocab_size,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": False,
        "torch_dtype": str(checkpoint.tensors["fc.weight"].dtype).removeprefix("torch."),
    }


def _eagle_config(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": False,  # vLLM takes True for speculators checkpoints that do not say
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
    }


def _plain_config(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    architecture = "Eagle3Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLMEagle3"
    return {
        "architectures": [architecture],
        **_layer_config(checkpoint),
        **_eagle_config(checkpoint),
        "num_aux_hidden_states": len(config.aux_layer_ids),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [layer_id - 1 for layer_id in config.aux_layer_ids],
        },
        "tlt_engine": {"window": config.window},
    }


def _speculators_config(checkpoint: Checkpoint, target: str) -> dict[str, Any]:
    made_for = checkpoint.provenance.target
    layer = _layer_config(checkpoint)
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        **_eagle_config(checkpoint),
        "embed_requires_grad": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": SPECULATIVE_TOKENS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target, "architectures": [_architecture(made_for.model_type)]},
        },
        "transformer_layer_config": layer,
        "torch_dtype": layer["torch_dtype"],
    }


def _architecture(model_type: str) -> str:
    return {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[model_type]
