"""Method ``tlt`` at vLLM's front end: every spelling works, every refusal is one sentence before weights load."""

import json
import subprocess
import sys

import pytest

from models import make_tiny_llama

pytest.importorskip("vllm")

from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

from tlt_engine import compat, plugin  # noqa: E402
from tlt_engine.config import TltConfig  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("tiny_llama")))


def config_of(tiny, **arguments):
    return EngineArgs(model=tiny, skip_tokenizer_init=True, dtype="float32", **arguments).create_engine_config()


def parse(*words):
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--skip-tokenizer-init", "--dtype", "float32", *words]))


@pytest.mark.parametrize(
    ("words", "num_speculative_tokens"),
    [
        (["--speculative-model", "tlt"], 15),
        (["--spec-model", "tlt"], 15),
        (["--spec-method", "tlt", "--spec-tokens", "5"], 5),
        (["--speculative-config", '{"method": "tlt", "num_speculative_tokens": 6}'], 6),
        (["--speculative-config.method", "tlt", "--speculative-config.num_speculative_tokens", "7"], 7),
        (["--speculative-model", "tlt", "--speculative-config", '{"num-speculative-tokens": 8}'], 8),
    ],
)
def test_every_spelling_asks_for_the_same(tiny, words, num_speculative_tokens):
    config = parse("--model", tiny, *words).create_engine_config()
    assert config.parallel_config.worker_cls == plugin.WORKERS["cpu"]
    assert config.speculative_config.num_speculative_tokens == num_speculative_tokens
    options = TltConfig.from_user(config.additional_config["tlt"])
    assert options.num_speculative_tokens == num_speculative_tokens


def test_another_method_is_left_alone(tiny):
    config = config_of(
        tiny, speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    )
    assert config.speculative_config.method == "ngram"
    assert "tlt" not in (config.additional_config or {})
    assert config.parallel_config.worker_cls != plugin.WORKERS["cpu"]
    assert config_of(tiny).speculative_config is None


def test_requests_without_drafts_are_not_padded(tiny):
    """With a table the scheduler knows that the number of drafts varies; without, it pads with -1 and counts these."""
    config = config_of(tiny, speculative_config={"method": "tlt"})
    assert config.speculative_config.uses_dynamic_speculative_decoding()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"speculative_config": {"method": "tlt", "disable_by_batch_size": 4}}, "unknown key 'disable_by_batch_size'"),
        ({"speculative_config": {"method": "tlt", "num_speculative_tokens": 999}}, "num_speculative_tokens"),
        ({"speculative_config": {"method": "tlt", "model": "some/eagle"}}, "takes no other model"),
        ({"speculative_config": {"method": "eagle3", "model": "tlt"}}, "takes no other model"),
        ({"speculative_config": {"method": "tlt"}, "pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"speculative_config": {"method": "tlt"}, "worker_cls": "my.Worker"}, "worker_cls='my.Worker'"),
        ({"speculative_config": {"method": "tlt"}, "spec_method": "tlt"}, "set it once"),
    ],
)
def test_refusal_names_the_thing(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        config_of(tiny, **arguments)


def write_config(folder, **settings):
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_recurrent_target_is_refused_with_what_works_instead(tmp_path):
    model = write_config(
        tmp_path,
        architectures=["MambaForCausalLM"],
        model_type="mamba",
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        vocab_size=64,
        intermediate_size=128,
        conv_kernel=4,
        time_step_rank=4,
    )
    with pytest.raises(ValueError, match=r"recurrent layers cannot take back rejected draft tokens; serve it without"):
        config_of(model, speculative_config={"method": "tlt"})


def test_v2_runner_is_refused(tiny, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=1 asks for a runner without custom proposers"):
        config_of(tiny, speculative_config={"method": "tlt"})


def test_other_vllm_version_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.41.0")
    with pytest.raises(RuntimeError, match=r"works with vLLM 0\.32\.\*, but 0\.41\.0 is installed"):
        config_of(tiny, speculative_config={"method": "tlt"})


def test_seams_are_all_there_and_a_missing_one_is_named(monkeypatch):
    compat.check_seams()
    monkeypatch.setattr(compat, "SEAMS", (*compat.SEAMS, ("vllm.plugins", "no_such_hook", ())))
    with pytest.raises(RuntimeError, match=r"needs vllm\.plugins\.no_such_hook, which is missing in vLLM 0\.32"):
        compat.check_seams()
    monkeypatch.setattr(compat, "SEAMS", (("vllm.plugins", "load_endpoint_plugins", ("tasks",)),))
    with pytest.raises(RuntimeError, match=r"no longer takes \['tasks'\]"):
        compat.check_seams()


def test_min_p_and_logit_bias_pass_the_front_end_with_tlt_only(tiny):
    from vllm import SamplingParams

    params = SamplingParams(min_p=0.1, logit_bias={3: 1.0})
    params._validate_spec_decode(config_of(tiny, speculative_config={"method": "tlt"}).speculative_config)
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    with pytest.raises(VLLMValidationError, match="not yet supported"):
        params._validate_spec_decode(config_of(tiny, speculative_config=ngram).speculative_config)


def test_installed_plugin_changes_nothing_for_who_does_not_ask():
    """Importing the package or registering it loads neither torch code of ours nor the extension."""
    script = (
        "import sys; from tlt_engine.plugin import register; register(); register();"
        "print([m for m in sys.modules if m.startswith('tlt_engine.') and m != 'tlt_engine.plugin'])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip().splitlines()[-1] == "[]"


def test_help_shows_both_spellings():
    parser = FlexibleArgumentParser()
    AsyncEngineArgs.add_cli_args(parser)
    action = parser._option_string_actions["--speculative-model"]
    assert action.option_strings == ["--spec-model", "--speculative-model"]
    assert "tlt" in parser._option_string_actions["--spec-method"].choices


def test_cuda_worker_imports_without_a_device():
    from tlt_engine.worker.worker_cuda import TltCUDAWorker

    assert TltCUDAWorker.__mro__[1].__name__ == "TltWorkerMixin"
