"""Entry point of ``vllm.general_plugins``: teaches vLLM's front end method ``tlt``.

Runs in every vLLM process; changes nothing until a user asks for the method. The attributes replaced here are the only
ones replaced for good; each says why and until when.
"""

import argparse
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
    from vllm.engine.arg_utils import EngineArgs

METHOD = "tlt"
PROPOSER = "tlt_engine.worker.proposer.TltProposer"
WORKERS = {
    "cpu": "tlt_engine.worker.worker_cpu.TltCPUWorker",
    "cuda": "tlt_engine.worker.worker_cuda.TltCUDAWorker",
}
FOREVER = 1_000_000_000

logger = logging.getLogger(f"vllm.{__name__}")


def register() -> None:
    """Adds method ``tlt`` to vLLM's arguments; calling it again does nothing."""
    from vllm.engine.arg_utils import EngineArgs

    if getattr(EngineArgs.create_speculative_config, "is_tlt", False):
        return
    try:
        _extend_arguments(EngineArgs)
        _allow_all_sampling_parameters()
        _add_endpoints()
    except (AttributeError, ImportError) as error:
        # A plugin must not stop a server that did not ask for it; who asks is told what is missing by to_stock().
        logger.warning("tlt_engine: this vLLM lacks something of ours: %s", error)


def is_tlt(speculative_config: "dict[str, Any] | None") -> bool:
    """Returns whether a user's speculative configuration asks for us."""
    config = speculative_config or {}
    return METHOD in (config.get("method"), config.get("model"))


def to_stock(args: "EngineArgs", model: "ModelConfig", parallel: "ParallelConfig") -> None:
    """Rewrites a request for method ``tlt`` into what stock vLLM accepts.

    Our options travel to every process in ``additional_config``, which vLLM also hashes into its compile caches.

    Args:
        args: engine arguments whose ``speculative_config`` asks for ``tlt``; modified in place.
        model: the target's configuration.
        parallel: the engine's; its ``worker_cls`` becomes ours.

    Raises:
        ValueError: an option is unknown or out of range, or the target cannot be served.
        RuntimeError: vLLM lacks a seam, or the platform is not supported.
    """
    from vllm.platforms import current_platform

    from tlt_engine import compat
    from tlt_engine.config import TltConfig
    from tlt_engine.spec.policy_factory import build_selector
    from tlt_engine.worker.platform_support import load_fitting_drafter, refuse_unservable

    options = dict(args.speculative_config or {})
    method, model_name = options.pop("method", METHOD), options.pop("model", METHOD)
    if (method, model_name) != (METHOD, METHOD):
        raise ValueError(
            f"speculative_config: method={method!r} with model={model_name!r}; method 'tlt' takes no other model, "
            "name a drafter of your own with the key 'drafter'"
        )
    compat.check_version()
    compat.check_seams()
    config = TltConfig.from_user(options)
    build_selector(config)  # refuses strategies that are not possible
    refuse_unservable(model, parallel)
    if config.is_learned:
        load_fitting_drafter(Path(config.drafter), model)  # refuses before the target's weights load
    platform = "cpu" if current_platform.is_cpu() else "cuda" if current_platform.is_cuda() else None
    if platform is None:
        raise RuntimeError(f"method 'tlt' runs on CPU and CUDA, not on {current_platform.device_name}")
    if parallel.worker_cls not in ("auto", WORKERS[platform]):
        raise ValueError(
            f"method 'tlt' brings its own worker, but worker_cls={parallel.worker_cls!r} is set; "
            "leave it at its default, or add methods with --worker-extension-cls"
        )
    parallel.worker_cls = WORKERS[platform]
    args.additional_config = {**(args.additional_config or {}), METHOD: config.to_builtins()}
    args.speculative_config = {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": config.num_speculative_tokens,
        # A table of one range: with it the scheduler knows that the number of drafts varies, and does not pad requests
        # that have none up to the maximum.
        "num_speculative_tokens_per_batch_size": [(1, FOREVER, config.num_speculative_tokens)],
    }


def _extend_arguments(engine_args: "type[EngineArgs]") -> None:
    """Cause: ``SpeculativeConfig.method`` is a closed list. Until: vLLM lets plugins register methods."""
    stock_create = engine_args.create_speculative_config
    stock_add = engine_args.add_cli_args

    @functools.wraps(stock_create)
    def create_speculative_config(
        self: "EngineArgs", target_model_config: "ModelConfig", target_parallel_config: "ParallelConfig"
    ) -> "SpeculativeConfig | None":
        merged = {key.replace("-", "_"): value for key, value in (self.speculative_config or {}).items()}
        flags = {"method": self.spec_method, "model": self.spec_model, "num_speculative_tokens": self.spec_tokens}
        given = {key: value for key, value in flags.items() if value is not None}
        if is_tlt(merged) or is_tlt(given):
            clash = sorted(key for key in given if key in merged)
            if clash:
                raise ValueError(f"{clash[0]!r} is set both in --speculative-config and by its own flag; set it once")
            self.speculative_config = merged | given
            self.spec_method = self.spec_model = self.spec_tokens = None
            to_stock(self, target_model_config, target_parallel_config)
        return stock_create(self, target_model_config, target_parallel_config)

    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser = stock_add(parser)
        for action in list(parser._actions):
            if "--spec-method" in action.option_strings and action.choices:
                action.choices = [*action.choices, METHOD]
            if "--spec-model" in action.option_strings and "--speculative-model" not in parser._option_string_actions:
                action.option_strings = [*action.option_strings, "--speculative-model"]
                parser._option_string_actions["--speculative-model"] = action
        return parser

    create_speculative_config.is_tlt = True  # type: ignore[attr-defined]
    engine_args.create_speculative_config = create_speculative_config  # type: ignore[method-assign]
    engine_args.add_cli_args = staticmethod(add_cli_args)  # type: ignore[method-assign,assignment]


def _allow_all_sampling_parameters() -> None:
    """Cause: the front end refuses min_p and logit_bias with any speculation. Until: vLLM supports them with it.

    What is checked in its place are our own options of a request.
    """
    from vllm.sampling_params import SamplingParams

    stock_validate = SamplingParams._validate_spec_decode

    @functools.wraps(stock_validate)
    def validate(self: SamplingParams, speculative_config: "SpeculativeConfig | None") -> None:
        if speculative_config is None or speculative_config.model != PROPOSER:
            stock_validate(self, speculative_config)
            return
        from tlt_engine.worker.request_options import check_options

        check_options(self.extra_args)

    SamplingParams._validate_spec_decode = validate  # type: ignore[method-assign]


def _add_endpoints() -> None:
    """Cause: endpoint plugins load only if VLLM_PLUGINS names them, which then hides every other plugin.

    Until: vLLM lets a general plugin bring its routes. They answer 404 unless the engine runs method ``tlt``.
    """
    import vllm.plugins

    stock_load = vllm.plugins.load_endpoint_plugins

    @functools.wraps(stock_load)
    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        from tlt_engine.server.endpoints import TltEndpoints

        plugins = list(stock_load(supported_tasks))
        if not any(plugin.name == TltEndpoints.name for plugin in plugins):
            plugins.append(TltEndpoints())
        return plugins

    vllm.plugins.load_endpoint_plugins = load_endpoint_plugins
