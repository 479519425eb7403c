"""A drafter's shape follows from its target, and its first weights can come from it."""

import pytest
import torch
from transformers import AutoConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3ForCausalLM

from tlt_engine.drafter.config import DrafterConfig, default_aux_layer_ids
from tlt_engine.drafter.initialise import INITIALISATIONS, TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_layers_are_low_middle_and_high():
    assert default_aux_layer_ids(30) == (2, 15, 27)
    assert default_aux_layer_ids(3) == (1, 2)
    assert default_aux_layer_ids(1) == (1,)


@pytest.mark.parametrize(
    ("target", "has_bias", "has_norms", "head_dim"),
    [
        (LlamaConfig(**SHAPE), False, False, 8),
        (Qwen2Config(**SHAPE), True, False, 8),
        (Qwen3Config(**SHAPE, head_dim=16), False, True, 16),
    ],
)
def test_families(target, has_bias, has_norms, head_dim):
    config = DrafterConfig.from_target(target, draft_vocab_size=1000)
    assert (config.attention_bias, config.qk_norm, config.head_dim) == (has_bias, has_norms, head_dim)
    assert config.draft_vocab_size == 96, "never more than the target has"
    names = DrafterModel(config).state_dict()
    assert ("midlayer.self_attn.q_proj.bias" in names) == has_bias
    assert ("midlayer.self_attn.k_norm.weight" in names) == has_norms


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 5000.0},
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_scaling_is_the_targets(rope):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    target = LlamaConfig(**SHAPE, rope_parameters=rope, max_position_embeddings=512)
    model = DrafterModel(DrafterConfig.from_target(target))
    positions = torch.tensor([0, 3, 70, 400])
    expected = LlamaRotaryEmbedding(target)(torch.zeros(1), positions[None])
    for mine, theirs in zip(model.bfloat16().rotary(torch.zeros(1), positions), expected, strict=True):
        assert torch.equal(mine[:, 0], theirs[0])


def test_another_family_is_refused_with_what_works():
    with pytest.raises(ValueError, match=r"no drafter for targets of type 'gpt2'.*'ngram'\) works for every target"):
        DrafterConfig.from_target(GPT2Config())


@pytest.mark.parametrize("layer_ids", [(2, 99), (-1, 2), (3, 2), (2, 2)])
def test_layers_that_cannot_be_are_refused(layer_ids):
    with pytest.raises(ValueError, match="aux_layer_ids"):
        DrafterConfig.from_target(LlamaConfig(**SHAPE), aux_layer_ids=layer_ids)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(0)
    target = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False))
    target.save_pretrained(folder)
    return folder, target


def initialised(folder, method):
    config = AutoConfig.from_pretrained(folder)
    model = DrafterModel(DrafterConfig.from_target(config, draft_vocab_size=10))
    model.set_draft_vocabulary(torch.arange(5, 95, 9))
    initialise(model, TargetWeights(folder), config.num_hidden_layers, method)
    return model


@pytest.mark.parametrize("method", INITIALISATIONS)
def test_first_weights_come_from_the_target(qwen3, method):
    folder, target = qwen3
    model = initialised(folder, method)
    last = target.model.layers[-1]
    rows = target.lm_head.weight[model.draft_vocabulary]
    assert torch.equal(model.lm_head.weight, rows) == (method != "random")
    assert torch.equal(model.midlayer.mlp.up_proj.weight, last.mlp.up_proj.weight) == (method == "last_layer")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_copied_layer_continues_the_highest_feature_as_the_target_would(qwen3):
    folder, target = qwen3
    model = initialised(folder, "last_layer")
    torch.nn.init.zeros_(model.fc.weight)
    model.fc.weight.data[:, -32:] = torch.eye(32)
    for projection in ("q_proj", "k_proj", "v_proj"):
        getattr(model.midlayer.self_attn, projection).weight.data[:, :32] = 0
    hidden = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(3))
    positions = torch.arange(6)

    def attend(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )[0].transpose(0, 1)

    with torch.no_grad():
        mine = model(
            torch.zeros(6, 32),
            model.fuse(torch.cat([torch.zeros(6, 64), hidden[0]], dim=-1)),
            model.rotary(hidden, positions),
            attend,
        )
        rotary = target.model.rotary_emb(hidden, positions[None])
        theirs = target.model.layers[-1](hidden, position_embeddings=rotary, attention_mask=None)
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    assert torch.allclose(mine, theirs.view(6, 32), atol=1e-5)


def test_weights_of_a_model_without_safetensors_are_told(tmp_path):
    with pytest.raises(ValueError, match="no safetensors files"):
        TargetWeights(tmp_path)


def test_an_unknown_initialisation_is_refused(qwen3):
    with pytest.raises(ValueError, match=r"initialisation: expected one of \['random', 'head', 'last_layer'\]"):
        initialised(qwen3[0], "zeros")
