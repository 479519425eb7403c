"""``tlt-engine warmup``: a first drafter for a target, from responses that the target writes now."""

import argparse
import json
import math
from pathlib import Path

import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from tlt_engine import __version__
from tlt_engine.cli.warmup_responses import record_responses
from tlt_engine.drafter.checkpoint import (
    FILE_NAME,
    Checkpoint,
    Provenance,
    TargetIdentity,
    check_fits_target,
    load_checkpoint,
    save_checkpoint,
)
from tlt_engine.drafter.config import DEFAULT_DRAFT_VOCAB_SIZE, DEFAULT_WINDOW, DrafterConfig
from tlt_engine.drafter.initialise import INITIALISATIONS, TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.whole_file import sweep
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.drafter_trainer.trainer import RECIPES, Trainer, TrainerConfig
from tlt_engine.drafter_trainer.vocabulary import choose_draft_vocabulary
from tlt_engine.drafter_trainer.warmup import Evaluation, train

HELD_OUT_EVERY = 12
"""One prompt of so many is held out."""

WORK_FOLDER, STATE_FILE, OPTIONS_FILE = "warmup", "trainer.pt", "options.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", help="directory of the target")
    parser.add_argument("--data", required=True, help="prompts.jsonl or reasoning-gym:NAME[+NAME...]")
    parser.add_argument("--tokens", type=_positive, required=True, help="response tokens to generate and learn from")
    parser.add_argument("--out", type=Path, required=True, help="directory of the drafter; work in progress lies there")
    parser.add_argument("--max-tokens", type=_positive, default=384, help="longest response")
    parser.add_argument("--epochs", type=_positive, default=3, help="passes over the responses")
    parser.add_argument("--draft-vocab-size", type=_positive, help=f"default {DEFAULT_DRAFT_VOCAB_SIZE}")
    parser.add_argument("--window", type=_positive, help=f"positions the drafter attends to, default {DEFAULT_WINDOW}")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="eagle3")
    parser.add_argument(
        "--initialisation",
        default="last_layer",
        help=f"first weights: one of {', '.join(INITIALISATIONS)}, or the directory of a drafter to train on",
    )
    parser.add_argument("--learning-rate", type=_positive_real, default=TrainerConfig().learning_rate)
    parser.add_argument("--dtype", default="auto", help="of the target")
    parser.add_argument("--depth", type=_positive, default=4, help="draft tokens of the chain that is evaluated")
    parser.add_argument("--keep-samples", action="store_true", help="leave what was recorded in the folder 'warmup'")
    parser.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> int:
    """Generates, trains, and writes the drafter; started again it goes on where it stopped.

    Args:
        options: see ``add_arguments``.

    Raises:
        ValueError: the target or the data cannot be used, or ``--out`` holds something else's work.
    """
    target_config = AutoConfig.from_pretrained(options.model)
    weights = TargetWeights(Path(options.model))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    earlier = _earlier_drafter(options, target_config, tokenizer)
    config = DrafterConfig.from_target(
        target_config,
        draft_vocab_size=options.draft_vocab_size or DEFAULT_DRAFT_VOCAB_SIZE,
        window=options.window or DEFAULT_WINDOW,
    )
    _claim(options)
    store = SampleStore(options.out / WORK_FOLDER)
    samples = record_responses(options, tokenizer, store)
    # Held-out numbers are even, and those were answered greedily: only on such text is a greedy chain's account exact.
    held_out = [sample for sample in samples if _number(sample) % HELD_OUT_EVERY == 0]
    learnt = [sample for sample in samples if _number(sample) % HELD_OUT_EVERY != 0]

    if earlier is not None:
        model = earlier.build().float()
    else:
        model = DrafterModel(config)
        model.set_draft_vocabulary(choose_draft_vocabulary(learnt, config.draft_vocab_size, config.vocab_size))
        initialise(model, weights, target_config.num_hidden_layers, options.initialisation, options.seed)
    embedding, head = weights.embedding, weights.head
    trainer = Trainer(
        model,
        lambda token_ids: F.embedding(token_ids, embedding),
        TargetHead(lambda: head),
        TrainerConfig(recipe=options.recipe, learning_rate=options.learning_rate),
    )
    identity = TargetIdentity.of(options.model, target_config, tokenizer, model.draft_vocabulary)
    bar = tqdm(desc="train", unit="evaluation", total=None)

    def report(evaluation: Evaluation, loss: float, is_best: bool) -> None:
        rates = " ".join(f"{rate:.2f}" for rate in evaluation.acceptance_rates)
        text = "" if math.isnan(loss) else f"loss {loss:.3f}, "
        bar.update()
        bar.write(
            f"{evaluation.num_tokens:>9} tokens: {text}held-out acceptance length "
            f"{evaluation.acceptance_length:.3f} (by depth {rates}){' *' if is_best else ''}"
        )
        if is_best:
            provenance = _provenance(options, identity, earlier, trainer, evaluation, len(held_out))
            save_checkpoint(options.out, model, provenance)

    train(
        trainer,
        learnt,
        held_out,
        lambda token_ids: F.embedding(token_ids, embedding),
        num_epochs=options.epochs,
        depth=options.depth,
        evaluations_per_epoch=4,
        report=report,
        state_file=options.out / WORK_FOLDER / STATE_FILE,
    )
    bar.close()
    if not options.keep_samples:
        for name in (STATE_FILE, OPTIONS_FILE):
            (options.out / WORK_FOLDER / name).unlink(missing_ok=True)
        store.clear()
    print(f"written: {options.out}")
    return 0


def _earlier_drafter(
    options: argparse.Namespace, target: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> Checkpoint | None:
    """Reads the drafter that is trained on, if ``--initialisation`` names one."""
    if options.initialisation in INITIALISATIONS:
        return None
    if not Path(options.initialisation).is_dir():
        raise ValueError(
            f"--initialisation: expected one of {list(INITIALISATIONS)} or the directory of a drafter, got "
            f"{options.initialisation!r}"
        )
    checkpoint = load_checkpoint(Path(options.initialisation))
    check_fits_target(checkpoint, target, tokenizer, f"--initialisation {options.initialisation}")
    for option, given in (("draft_vocab_size", options.draft_vocab_size), ("window", options.window)):
        has = getattr(checkpoint.config, option)
        if given not in (None, has):
            raise ValueError(
                f"--{option.replace('_', '-')} {given}: the drafter in {options.initialisation} has {has}, which "
                "training does not change; leave the option out"
            )
    return checkpoint


def _claim(options: argparse.Namespace) -> None:
    """Makes sure that what lies in ``--out`` is work of the same options, or nothing."""
    file = options.out / WORK_FOLDER / OPTIONS_FILE
    ignored = ("run", "out", "keep_samples")
    mine = {key: "default" if value is None else value for key, value in vars(options).items() if key not in ignored}
    if file.is_file():
        for key, value in json.loads(file.read_text()).items():
            if mine.get(key) != value:
                raise ValueError(
                    f"{options.out}: a warm-up with --{key.replace('_', '-')} {value} was begun here and this one has "
                    f"{mine.get(key)}; go on with the same options, name another --out, or delete {file.parent}"
                )
        sweep(options.out)
        return
    if (options.out / FILE_NAME).exists():
        raise ValueError(f"{options.out} holds a finished drafter; name another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(mine))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def _positive_real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def _number(sample: Sample) -> int:
    return int(sample.req_id)


def _provenance(
    options: argparse.Namespace,
    identity: TargetIdentity,
    earlier: Checkpoint | None,
    trainer: Trainer,
    evaluation: Evaluation,
    num_held_out: int,
) -> Provenance:
    before = (0, 0) if earlier is None else (earlier.provenance.num_tokens_seen, earlier.provenance.num_steps)
    return Provenance(
        target=identity,
        recipe=options.recipe,
        num_tokens_seen=before[0] + evaluation.num_tokens,
        num_steps=before[1] + trainer.num_steps,
        held_out=f"{num_held_out} greedy responses to other prompts of {options.data}",
        held_out_acceptance_rates=tuple(evaluation.acceptance_rates),
        engine_version=__version__,
    )
