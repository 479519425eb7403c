"""The commands say what they did, and refuse with one sentence before anything is lost."""

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafter.small import HIDDEN, VOCAB, small_drafter
from tlt_engine.cli import probe, warmup
from tlt_engine.cli.main import main
from tlt_engine.cli.warmup_responses import record_responses
from tlt_engine.drafter.checkpoint import FILE_NAME, Provenance, TargetIdentity, save_checkpoint
from tlt_engine.drafter.whole_file import PREFIX
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.server.recording import read_prompts
from tlt_engine.spec.decision_log import Decision, DecisionLog

TARGET = SimpleNamespace(model_type="llama", num_hidden_layers=4, hidden_size=HIDDEN, vocab_size=VOCAB)


@pytest.fixture
def drafter(tmp_path):
    model = small_drafter().float()
    provenance = Provenance(
        target=TargetIdentity.of("/models/target", TARGET, None, model.draft_vocabulary),
        recipe="hass",
        num_tokens_seen=4321,
        num_steps=3,
        held_out="a test",
        held_out_acceptance_rates=(0.5, 0.25),
    )
    save_checkpoint(tmp_path / "drafter", model, provenance)
    return tmp_path / "drafter"


def run(*arguments):
    """Runs a command and returns what it exits with: 0, or its sentence."""
    with pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    return exit_info.value.code


def test_inspect_says_where_a_drafter_came_from(drafter, capsys):
    assert run("inspect", drafter) == 0
    printed = capsys.readouterr().out
    for fact in (
        "target (llama, 4 layers",
        "4321 tokens in 3 steps, recipe hass",
        "length 1.750, by depth 0.500 0.250",
    ):
        assert fact in printed


def test_doctor_calls_a_drafter_wrong_only_beyond_chance():
    assert not probe._is_no_chance(0.03, 0.06, 300)
    assert probe._is_no_chance(0.0, 0.06, 3000)
    assert probe._is_no_chance(0.2, 0.7, 300)
    assert not probe._is_no_chance(0.7, 0.7, 300)


def test_inspect_tells_what_a_decision_log_holds(tmp_path, capsys):
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    for step in range(40):
        drafts = step >= 10
        log.write(
            Decision(
                seconds_since_start=0.05 * step,
                batch_size=2,
                strategy="both-d4-k4-w16" if drafts else "none",
                is_exploration=step == 20,
                draft_rows=6 if drafts else 0,
                num_accepted=4 if drafts else 0,
                seconds=0.06 if drafts else 0.03,
                draft_seconds=0.006 if drafts else 0.0,
                target_seconds=0.03,
                plain_seconds=0.03,
            )
        )
    assert run("inspect", path) == 0
    printed = capsys.readouterr().out
    assert "40 decode steps, 2.5% of them to try something else" in printed
    assert re.search(r"2 +both-d4-k4-w16 +30 +6.00 +1.50x +10.0%", printed)
    assert re.search(r"2 +none +10 +2.00 +1.00x +0.0%", printed)
    assert (tmp_path / "decisions.png").stat().st_size > 10_000
    (tmp_path / "empty.jsonl").touch()
    assert run("inspect", tmp_path / "empty.jsonl").endswith("empty.jsonl: no step is logged yet")
    assert "cannot be read" in run("inspect", tmp_path / "nothing.jsonl")


def test_inspect_refuses_what_is_no_drafter(tmp_path):
    assert run("inspect", tmp_path) == f"tlt-engine: {tmp_path}: no drafter here, expected the file {FILE_NAME}"


def train_on(drafter, target=TARGET, **settings):
    options = {"initialisation": str(drafter), "draft_vocab_size": None, "window": None} | settings
    return warmup._earlier_drafter(argparse.Namespace(**options), target, None)


def test_a_drafter_can_be_trained_on(drafter):
    checkpoint = train_on(drafter, window=64)
    assert checkpoint.provenance.num_tokens_seen == 4321
    assert train_on("last_layer") is None
    options = argparse.Namespace(recipe="eagle3", data="more.jsonl")
    trainer, evaluation = SimpleNamespace(num_steps=10), SimpleNamespace(num_tokens=100, acceptance_rates=[0.5])
    provenance = warmup._provenance(options, checkpoint.provenance.target, checkpoint, trainer, evaluation, 2)
    assert (provenance.num_tokens_seen, provenance.num_steps) == (4421, 13)


def test_training_on_refuses_what_it_would_not_do(drafter):
    with pytest.raises(ValueError, match="--window 32: the drafter in .* has 64, which training does not change"):
        train_on(drafter, window=32)
    with pytest.raises(
        ValueError, match=r"expected one of \['random', 'head', 'last_layer'\] or the directory of a dr"
    ):
        train_on("middle_layer")
    with pytest.raises(
        ValueError, match="--initialisation .*: made for .* with number of layers 4, but this target has 5"
    ):
        train_on(drafter, SimpleNamespace(**vars(TARGET) | {"num_hidden_layers": 5}))


def test_export_writes_a_directory(drafter, tmp_path):
    assert run("export", drafter, "--to", "vllm", "--out", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_speculators_export_asks_for_the_target(drafter, tmp_path):
    assert "name the target with --target DIR" in run(
        "export", drafter, "--to", "speculators", "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def test_doctor_asks_for_the_target_of_a_drafter(drafter):
    assert "tlt-engine doctor MODEL --drafter DIR" in run("doctor", "--drafter", drafter)


class Tokenizer:
    """Tokens are words."""

    chat_template = None

    def __call__(self, text):
        return SimpleNamespace(input_ids=text.split())


def test_prompts_come_from_both_forms_of_lines_and_start_over(tmp_path):
    lines = [
        {"prompt": " one two "},
        {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "so"}]},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    prompts = read_prompts(str(tmp_path / "p.jsonl"), Tokenizer(), 3, 0)
    assert prompts == [["one", "two"], ["be", "so"], ["one", "two"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": 3}', r"line 2: expected the key 'prompt' \(text\) or 'messages' \(chat\)"),
        ('{"prompt": "a"}\nhello', "line 2: JSON is malformed"),
        ("\n\n", "no line with a prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(str(tmp_path / "p.jsonl"), Tokenizer(), 2, 0)


def test_data_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"--data nowhere.jsonl: expected a .jsonl file or 'reasoning-gym:NAME'"):
        read_prompts("nowhere.jsonl", Tokenizer(), 1, 0)
    with pytest.raises(ValueError, match="--data reasoning-gym:no_such_task: .*no_such_task"):
        read_prompts("reasoning-gym:no_such_task", Tokenizer(), 1, 0)


def options(out: Path, **changed):
    parser = argparse.ArgumentParser()
    warmup.add_arguments(parser)
    parsed = parser.parse_args(["model", "--data", "d.jsonl", "--tokens", "100", "--out", str(out)])
    return argparse.Namespace(**vars(parsed) | changed)


def test_a_finished_drafter_is_not_trained_over(drafter):
    with pytest.raises(ValueError, match="holds a finished drafter; name another --out"):
        warmup._claim(options(drafter))


def test_work_goes_on_with_the_same_options_only(tmp_path):
    warmup._claim(options(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"the best so far")
    (tmp_path / f"{PREFIX}of a killed writer").write_bytes(b"half of the next")
    warmup._claim(options(tmp_path, keep_samples=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "warmup"]
    with pytest.raises(
        ValueError, match="a warm-up with --draft-vocab-size default was begun here and this one has 4096"
    ):
        warmup._claim(options(tmp_path, draft_vocab_size=4096))


def test_a_prompt_that_is_too_long_is_named_before_the_engine_starts(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n' + json.dumps({"prompt": "a " * 1025}))
    store = SampleStore(tmp_path / "warmup")
    with pytest.raises(ValueError, match="prompt 2 has 1025 tokens, at most 1024 can be used"):
        record_responses(options(tmp_path, data=str(tmp_path / "p.jsonl")), Tokenizer(), store)


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_numbers_are_positive(number, capsys):
    assert run("warmup", "model", "--data", "d", "--tokens", number, "--out", "o") == 2
    assert f"expected a positive number, got '{number}'" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1e-3", "nan", "inf", "fast"])
def test_a_learning_rate_is_above_nothing(rate, capsys):
    assert run("warmup", "model", "--data", "d", "--tokens", "9", "--out", "o", f"--learning-rate={rate}") == 2
    assert f"expected a number above 0, got '{rate}'" in capsys.readouterr().err
