"""What a result file says: ratios paired run by run and oriented, names of files, no path of the machine, tables."""

import argparse
import json

import pytest

from benchmarks import bench_rollout
from benchmarks.jobs import Job, JobRequest, JobResult, Step
from benchmarks.measure import Comparison, run_curves
from benchmarks.readme_table import fill, make_table, newest_results
from benchmarks.result import Result, Row, machine_slug, paired_ratio, quantile, summarise, thin_out

CPU = {"cpu": "AMD EPYC", "cores": 2, "memory_gib": 24, "gpu": None}


def make_result(**changes) -> Result:
    fields = {
        "bench": "decode",
        "command": "python -m benchmarks.bench_decode",
        "commit": "0123456789abcdef",
        "dirty": False,
        "machine": CPU,
        "versions": {"vllm": "0.32.0", "torch": "2.13.0"},
        "settings": {"model": "tiny"},
        "date": "2026-11-30T04:00:00+00:00",
    }
    return Result(**{**fields, **changes})


def make_run(wall_s: float, token_ids: dict, steps=(), drafts: int = 0, accepted: int = 0) -> JobResult:
    return JobResult(
        engine="stock",
        wall_s=wall_s,
        token_ids=token_ids,
        steps=list(steps),
        num_drafts=drafts,
        num_accepted_tokens=accepted,
        startup_s=0.0,
    )


def test_ratio_is_the_median_over_pairs_and_not_the_ratio_of_medians():
    # The machine was slow in round 2. Pairs: 2, 2, 5; medians: 30 / 10 = 3.
    assert paired_ratio([20, 6, 50], [10, 3, 10], "higher") == 2
    assert paired_ratio([20, 30, 50], [10, 3, 10], "higher") == 5


def test_ratio_above_one_is_better_whichever_way_the_metric_goes():
    assert paired_ratio([5.0], [10.0], "lower") == 2
    assert paired_ratio([5.0], [10.0], "higher") == 0.5
    assert summarise([5.0], baseline=("stock", [10.0]), name="a", case="c", metric="wall_s", unit="s").ratio == 2
    faster = summarise([20.0], baseline=("stock", [10.0]), name="a", case="c", metric="tokens_per_s", unit="tokens/s")
    assert faster.ratio == 2


def test_runs_that_do_not_pair_up_are_refused():
    with pytest.raises(ValueError, match="2 runs against 1"):
        paired_ratio([1, 2], [1], "lower")
    with pytest.raises(ValueError, match="0 runs"):
        paired_ratio([], [], "lower")


def test_quantiles_interpolate_between_neighbours_in_any_order():
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([10, 0], 0.1) == 1
    assert quantile([7], 0.9) == 7
    assert quantile([1, 2, 3], 1.0) == 3


def test_row_without_a_baseline_leaves_its_keys_out():
    plain = summarise([1.0, 2.0, 3.0], name="stock", case="c", metric="wall_s", unit="s").to_json()
    assert {"baseline", "ratio", "p95"}.isdisjoint(plain)
    assert (plain["value"], plain["p10"], plain["p90"], plain["n"]) == (2.0, 1.2, 2.8, 3)
    compared = summarise([1.0], baseline=("stock", [2.0]), name="a", case="c", metric="wall_s", unit="s").to_json()
    assert (compared["baseline"], compared["ratio"]) == ("stock", 2.0)


@pytest.mark.parametrize(
    ("machine", "slug"),
    [
        (CPU, "2core-epyc"),
        ({"cpu": "Intel(R) Xeon(R) Platinum 8480+", "cores": 56, "gpu": None}, "56core-xeon"),
        ({"cpu": "13th Gen Intel(R) Core(TM) i7-1360P", "cores": 16, "gpu": None}, "16core-i7"),
        ({"cpu": "AMD EPYC", "cores": 16, "gpu": "NVIDIA H200"}, "h200"),
    ],
)
def test_machine_slug_names_the_chip(machine, slug):
    assert machine_slug(machine) == slug


def test_file_name_and_content_follow_the_agreed_form(tmp_path):
    row = summarise([1.0], name="stock", case="batch=1", metric="wall_s", unit="s")
    path = make_result(rows=[row]).write(tmp_path)
    assert path.name == "decode_20261130_0123456_2core-epyc.json"
    data = json.loads(path.read_text())
    assert data["rows"][0]["metric"] == "wall_s"
    assert {"bench", "command", "commit", "dirty", "date", "machine", "versions", "settings", "series"} <= set(data)


@pytest.mark.parametrize("leak", ["/home/me/models/tiny", "python -m x --model /opt/tiny", "see /tmp/a"])
def test_a_path_of_the_machine_is_refused(tmp_path, leak):
    with pytest.raises(ValueError, match="holds a path"):
        make_result(settings={"model": leak}).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_unit_or_an_address_is_no_path(tmp_path):
    make_result(settings={"unit": "tokens/s", "index": "https://example.org/data/x", "ratio": "a/home/b"}).write(
        tmp_path
    )


def test_thinned_curve_keeps_its_ends():
    curve = [(float(x), float(x * x)) for x in range(1000)]
    kept = thin_out(curve, limit=10)
    assert len(kept) == 10
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert thin_out(curve[:3], limit=10) == curve[:3]


def test_live_batch_seconds_put_each_step_into_one_range():
    steps = [
        Step(end_s=float(live), duration_s=1.0, num_live=live, num_tokens=live, is_decode=True)
        for live in (1, 2, 4, 5, 8, 9, 40)
    ]
    seconds = make_run(7.0, {"a": [1]}, steps).live_batch_seconds()
    assert seconds == {"1": 1.0, "2-4": 2.0, "5-8": 2.0, ">8": 2.0}


def test_acceptance_length_counts_the_bonus():
    assert make_run(1.0, {}, drafts=10, accepted=15).acceptance_length == 2.5
    assert make_run(1.0, {}).acceptance_length == 1.0


def test_prefill_steps_are_no_decode_steps():
    steps = [
        Step(end_s=0.5, duration_s=0.5, num_live=2, num_tokens=2, is_decode=False),
        Step(end_s=0.6, duration_s=0.1, num_live=2, num_tokens=2, is_decode=True),
        Step(end_s=0.8, duration_s=0.2, num_live=1, num_tokens=1, is_decode=True),
    ]
    run = make_run(0.8, {}, steps)
    assert run.decode_step_ms() == pytest.approx([100, 200])
    assert run.decode_step_ms(num_live=1) == pytest.approx([200])


def test_curve_of_tokens_per_second_has_empty_bins_and_loses_no_token():
    steps = [Step(end_s=end_s, duration_s=0.1, num_live=1, num_tokens=3, is_decode=True) for end_s in (0.2, 0.9, 3.5)]
    _, rate = run_curves("stock", make_run(3.5, {}, steps))
    assert rate.points == [(0.0, 6.0), (1.0, 0.0), (2.0, 0.0), (3.0, 3.0)]


def test_outputs_are_equal_only_if_every_round_is():
    same, other = make_run(1.0, {"a": [1, 2]}), make_run(1.0, {"a": [1, 3]})
    assert Comparison("c", {"stock": [same, same], "tlt": [same, same]}, "stock").outputs_equal("tlt", "stock")
    assert not Comparison("c", {"stock": [same, same], "tlt": [same, other]}, "stock").outputs_equal("tlt", "stock")


def test_job_survives_the_way_to_its_process():
    request = JobRequest(request_id="a", prompt_token_ids=[1, 2], max_tokens=3, seed=7, answer_token_ids=[4])
    job = Job(engine="stock", settings={"model": "m"}, requests=[request], concurrency=1, warmup=[request])
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_document_is_filled_between_its_marks_only():
    places = [
        "<!-- benchmarks:decode -->\nold\n<!-- /benchmarks:decode -->",
        "<!-- benchmarks:rl -->\n<!-- /benchmarks:rl -->",
    ]
    text = "\nbetween\n".join(places)
    filled = fill(text, {"decode": "new"})
    assert filled == text.replace("old", "new")
    assert fill(filled, {"decode": "new"}) == filled
    with pytest.raises(ValueError, match="1 opened, 0 closed"):
        fill("<!-- benchmarks:decode -->", {"decode": "new"})


def test_table_comes_from_the_newest_file_and_shows_wrong_tokens(tmp_path):
    def rows(speed: float, equal: bool | None) -> list[Row]:
        fields = {"case": "batch=1", "metric": "tokens_per_s", "unit": "tokens/s"}
        stock = summarise([10.0], name="stock", **fields)
        return [stock, summarise([speed], baseline=("stock", [10.0]), name="tlt-ngram", outputs_equal=equal, **fields)]

    make_result(rows=rows(20.0, True)).write(tmp_path)
    make_result(rows=rows(15.0, False), date="2026-12-01T00:00:00+00:00", commit="f" * 40).write(tmp_path)
    path, data = newest_results(tmp_path)["decode"]
    table = make_table(path, data)
    assert "| `tlt-ngram` | 15.0 (1.50x) | NO |" in table
    assert "| `stock` | 10.0 |  |" in table
    assert path.name in table


def test_rollout_gives_every_engine_the_lengths_that_stock_had():
    arguments = argparse.Namespace(
        model="m",
        max_tokens=99,
        group_size=2,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=10,
        drafter=None,
        exported_drafter=None,
        concurrency=None,
    )
    natural = bench_rollout.make_job(arguments, "stock", [[1], [2]], [])
    assert [(request.max_tokens, request.ignore_eos, request.seed) for request in natural.requests] == [
        (99, False, None)
    ] * 4
    lengths = {"p0-r0": 5, "p0-r1": 6, "p1-r0": 7, "p1-r1": 8}
    job = bench_rollout.make_job(arguments, "tlt-ngram", [[1], [2]], [], repetition=1, lengths=lengths)
    assert {request.request_id: request.max_tokens for request in job.requests} == lengths
    assert all(request.ignore_eos for request in job.requests)
    assert [request.seed for request in job.requests] == [14, 15, 16, 17]
    assert [request.prompt_token_ids for request in job.requests] == [[1], [1], [2], [2]]
