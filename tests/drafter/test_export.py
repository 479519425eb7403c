"""An export is what the other engine's loader reads."""

import json

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from drafter.small import DRAFT_VOCAB, HIDDEN, VOCAB, provenance, random_embedding, small_drafter
from reference import sglang_eagle3
from tlt_engine.drafter.checkpoint import load_checkpoint, save_checkpoint
from tlt_engine.drafter.export import export
from tlt_engine.drafter.model import DrafterModel


def test_plain_export_has_vllms_names_and_both_conventions_of_layers(directory, tmp_path):
    export(load_checkpoint(directory), tmp_path / "out", to="vllm")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2], "SGLang adds 1 itself"
    assert (config["vocab_size"], config["draft_vocab_size"]) == (VOCAB, DRAFT_VOCAB)
    assert config["norm_before_residual"] is False
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (24, 2 * HIDDEN)
    assert (tensors["d2t"] + torch.arange(DRAFT_VOCAB)).tolist() == list(range(0, VOCAB, 2))
    assert "embed_tokens.weight" not in tensors


def test_a_full_vocabulary_needs_no_map_in_vllm(tmp_path):
    model = DrafterModel(msgspec.structs.replace(small_drafter().config, draft_vocab_size=VOCAB))
    save_checkpoint(tmp_path / "drafter", model, provenance(model))
    export(load_checkpoint(tmp_path / "drafter"), tmp_path / "out", to="vllm")
    assert "d2t" not in load_file(tmp_path / "out" / "model.safetensors")


def test_speculators_export_has_its_names_and_the_embedding(directory, tmp_path):
    embedding = random_embedding()
    export(load_checkpoint(directory), tmp_path / "out", to="speculators", target="org/target", embedding=embedding)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert torch.equal(tensors["embed_tokens.weight"], embedding.float())
    assert "layers.0.mlp.gate_proj.weight" in tensors
    assert not any("midlayer" in name for name in tensors)


def test_sglangs_loader_finds_everything_and_the_same_layers(directory, tmp_path):
    checkpoint = load_checkpoint(directory)
    export(checkpoint, tmp_path / "out", to="sglang")
    loaded = sglang_eagle3.load(tmp_path / "out", num_target_layers=12)
    assert not loaded.missing
    assert not loaded.skipped, "tensors that it would drop without a word"
    assert loaded.layers_to_capture == list(checkpoint.config.aux_layer_ids)
    assert loaded.hot_token_id.tolist() == checkpoint.build().draft_vocabulary.tolist()
    attention = checkpoint.build().midlayer.self_attn
    expected = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    assert torch.equal(loaded.parameters["midlayer.self_attn.qkv_proj.weight"], expected)


@pytest.mark.parametrize("broken", ["name", "layers", "shape"])
def test_the_check_for_sglang_notices_what_sglang_would_not(directory, tmp_path, broken):
    export(load_checkpoint(directory), tmp_path / "out", to="sglang")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if broken == "name":
        tensors["layers.0.hidden_norm.weight"] = tensors.pop("midlayer.hidden_norm.weight")
    elif broken == "layers":
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = config["eagle_aux_hidden_state_layer_ids"]
    else:
        tensors["fc.weight"] = tensors["fc.weight"][:, HIDDEN:].contiguous()
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    if broken == "shape":
        with pytest.raises(AssertionError, match="fc.weight"):
            sglang_eagle3.load(tmp_path / "out", num_target_layers=12)
        return
    loaded = sglang_eagle3.load(tmp_path / "out", num_target_layers=12)
    assert loaded.missing or loaded.layers_to_capture != [1, 3]


def test_speculators_loads_the_same_weights(directory, tmp_path):
    speculators = pytest.importorskip("speculators", reason="pip install speculators, see the Makefile")
    target = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
        )
    )
    target.save_pretrained(tmp_path / "target")
    embedding = target.model.embed_tokens.weight.detach()
    checkpoint = load_checkpoint(directory)
    export(checkpoint, tmp_path / "out", to="speculators", target=str(tmp_path / "target"), embedding=embedding)
    loaded = speculators.SpeculatorModel.from_pretrained(str(tmp_path / "out"))
    theirs = loaded.state_dict()
    for name, tensor in checkpoint.build().state_dict().items():
        assert torch.equal(theirs[name.replace("midlayer.", "layers.0.")], tensor), name
    assert torch.equal(theirs["embed_tokens.weight"], embedding)
    assert list(loaded.config.eagle_aux_hidden_state_layer_ids) == [1, 3]
    assert not loaded.config.norm_before_residual


def test_an_export_does_not_write_over_anything(directory, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(ValueError, match="holds something already"):
        export(load_checkpoint(directory), tmp_path / "out", to="vllm")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("family", "what"), [("qwen2", "biases of q, k and v"), ("qwen3", "norms of queries and keys")]
)
def test_what_sglang_cannot_hold_is_refused(tmp_path, family, what):
    model = small_drafter(family).float()
    save_checkpoint(tmp_path / "drafter", model, provenance(model))
    with pytest.raises(ValueError, match=f"SGLang's EAGLE-3 drafter has no {what}"):
        export(load_checkpoint(tmp_path / "drafter"), tmp_path / "out", to="sglang")
    export(load_checkpoint(tmp_path / "drafter"), tmp_path / "vllm", to="vllm")
    config = json.loads((tmp_path / "vllm" / "config.json").read_text())
    assert config["attention_bias"] == (family == "qwen2")
    assert config["architectures"] == ["Eagle3Qwen3ForCausalLM" if family == "qwen3" else "LlamaForCausalLMEagle3"]
