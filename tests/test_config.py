"""What a user writes is checked before anything loads, and every message names the key."""

import pytest

from tlt_engine.config import TltConfig


def test_defaults_need_nothing():
    assert TltConfig.from_user({}) == TltConfig()


def test_travels_as_plain_data():
    config = TltConfig.from_user({"num_speculative_tokens": 7, "prompt_lookup": {"max_match_len": 12}})
    assert TltConfig.from_user(config.to_builtins()) == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"disable_above_batchsize": 4},
            r"unknown key 'disable_above_batchsize'.*known keys: .*'num_speculative_tokens'",
        ),
        ({"draft_tensor_parallel_size": 1}, "unknown key 'draft_tensor_parallel_size'"),
        ({"prompt_lookup": {"max_ngram": 3}}, r"speculative_config\.prompt_lookup: unknown key 'max_ngram'"),
        ({"num_speculative_tokens": 0}, r"num_speculative_tokens"),
        ({"num_speculative_tokens": 256}, r"num_speculative_tokens"),
        ({"num_speculative_tokens": "8"}, r"num_speculative_tokens"),
        ({"max_step_rows": 0}, r"max_step_rows"),
        ({"prompt_lookup": {"min_prob": 1.5}}, r"prompt_lookup\.min_prob"),
        (
            {"drafter": "eagle"},
            r"drafter: expected 'auto', 'ngram', 'none', the directory of a trained drafter or .*, got 'eagle'",
        ),
        ({"drafter_args": {"a": 1}}, r"drafter_args: drafter 'auto' takes no arguments"),
        ({"train": {"speed": 2}}, r"speculative_config\.train: unknown key 'speed'.*'max_slowdown'"),
        ({"train": {"mode": "always"}}, r"train\.mode"),
        ({"train": {"max_slowdown": 0}}, r"train\.max_slowdown"),
        ({"train": {"buffer_bytes": 1000}}, r"train\.buffer_bytes"),
        ({"drafter": "ngram", "train": {"mode": "on"}}, r"train: drafter 'ngram' has nothing to train"),
    ],
)
def test_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        TltConfig.from_user(options)


def test_a_built_in_drafter_is_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ngram").mkdir()
    (tmp_path / "trained").mkdir()
    assert not TltConfig.from_user({"drafter": "ngram"}).is_learned
    assert TltConfig.from_user({"drafter": "trained"}).is_learned


def test_an_unknown_key_of_the_learned_drafter_is_named():
    with pytest.raises(ValueError, match=r"speculative_config.learned: unknown key 'depth' .* 'draft_depth'"):
        TltConfig.from_user({"learned": {"depth": 3}})
