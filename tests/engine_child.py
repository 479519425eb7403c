"""The child process of ``engine.run_engine``: one in-process engine, stepped by hand."""

import json
import os
from pathlib import Path


def main(job_text: str, result_path: str, log_path: str) -> None:
    job = json.loads(job_text)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):  # whatever writes below Python, too
        os.dup2(log, stream)
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "seed": 0,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 32,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        **job["engine"],
    }
    if job["speculative_config"] is not None:
        settings["speculative_config"] = job["speculative_config"]
    llm = LLM(job["model"], **settings)
    engine = llm.llm_engine

    def params_of(values: dict) -> SamplingParams:
        values = dict(values)
        if "logit_bias" in values:
            values["logit_bias"] = {int(token_id): bias for token_id, bias in values["logit_bias"].items()}
        if "structured_outputs" in values:
            values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
        return SamplingParams(**values, output_kind=RequestOutputKind.FINAL_ONLY)

    def free_blocks() -> int:
        return engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def run(batch: dict, index: int) -> list:
        params = batch["params"]
        for i, prompt in enumerate(batch["prompts"]):
            values = params[i] if isinstance(params, list) else params
            engine.add_request(f"{index}.{i}", {"prompt_token_ids": prompt}, params_of(values))
        finished, steps = {}, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    finished[output.request_id] = [
                        describe(sequence, output.prompt_logprobs) for sequence in output.outputs
                    ]
            steps += 1
            if job["traces_drafts"]:
                for request in engine.engine_core.engine_core.scheduler.requests.values():
                    drafts.append((request.request_id, request.num_tokens, list(request.spec_token_ids)))
            for _, _, method, arguments in (call for call in job["calls"] if call[:2] == [index, steps]):
                llm.collective_rpc(method, args=tuple(arguments))
            aborted = [f"{index}.{i}" for i, after in batch.get("abort_after", {}).items() if after == steps]
            if aborted:
                engine.abort_request(aborted)
        return [finished.get(f"{index}.{i}", []) for i in range(len(batch["prompts"]))]

    def plain(logprobs) -> list | None:
        """Positions as plain data; the first token of a prompt has none."""
        if not logprobs:
            return None
        return [{str(token_id): entry.logprob for token_id, entry in (position or {}).items()} for position in logprobs]

    def describe(sequence, prompt_logprobs) -> dict:
        return {
            "token_ids": list(sequence.token_ids),
            "text": sequence.text,
            "logprobs": plain(sequence.logprobs),
            "prompt_logprobs": plain(prompt_logprobs),
            "finish_reason": sequence.finish_reason,
            "stop_reason": sequence.stop_reason,
        }

    drafts = []
    before = free_blocks()
    batches = [run(batch, index) for index, batch in enumerate(job["batches"])]
    engine.step()  # the last requests leave the worker
    if job["samples_folder"] is not None:
        import torch

        from tlt_engine.drafter_trainer.sample_store import SampleStore

        SampleStore(Path(job["samples_folder"])).add(llm.collective_rpc("tlt_take_samples")[0], torch.float32)
    engine.reset_prefix_cache()
    status = None
    if job["speculative_config"] is not None and "tlt" in job["speculative_config"].values():
        status = llm.collective_rpc("tlt_status")[0]
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    result = {
        "batches": batches,
        "status": status,
        "metrics": metrics,
        "free_blocks": [before, free_blocks()],
        "drafts": drafts,
    }
    Path(result_path).write_text(json.dumps(result))
