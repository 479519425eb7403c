"""``tlt-engine inspect``: what a drafter is, where it came from and how good it was."""

from pathlib import Path

from tlt_engine.drafter.checkpoint import FILE_NAME, load_checkpoint


def run(directory: Path) -> int:
    """Prints a drafter's description, after the checks that serving makes.

    Raises:
        ValueError: the drafter is not whole.
    """
    checkpoint = load_checkpoint(directory)
    config, provenance = checkpoint.config, checkpoint.provenance
    target = provenance.target
    num_weights = sum(tensor.numel() for tensor in checkpoint.tensors.values() if tensor.is_floating_point())
    rates = " ".join(f"{rate:.3f}" for rate in provenance.held_out_acceptance_rates)
    lines = {
        "file": f"{directory / FILE_NAME}, whole",
        "target": f"{target.name} ({target.model_type}, {target.num_layers} layers, vocabulary {target.vocab_size})",
        "weights": f"{num_weights / 1e6:.1f} M, {checkpoint.tensors['fc.weight'].dtype}",
        "draft vocabulary": f"{config.draft_vocab_size} tokens",
        "features": f"hidden states after layers {', '.join(map(str, config.aux_layer_ids))}",
        "window": f"{config.window} positions",
        "trained": f"{provenance.num_tokens_seen} tokens in {provenance.num_steps} steps, recipe {provenance.recipe}",
        "acceptance": f"length {provenance.held_out_acceptance_length:.3f}, by depth {rates}; {provenance.held_out}",
        "written by": f"tlt-engine {provenance.engine_version}",
    }
    for name, text in lines.items():
        print(f"{name:<18}{text}")
    return 0
