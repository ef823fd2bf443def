"""The last artefacts of a run: weights, metrics.json, training.png."""

from pathlib import Path
from typing import Any

from nsa.train.files import write_json
from nsa.train.moments import model_tensors
from nsa.train.plot import draw
from nsa.train.saving import History
from nsa.train.setup import Machinery
from nsa.train.weights import write_weights
from nsa.train.world import World


def write_results(
    folder: Path,
    machinery: Machinery,
    world: World,
    history: History,
    *,
    entropy: float | None,
    oracle_loss: float | None,
) -> dict[str, Any]:
    """What metrics.json holds; all processes gather, the first one writes."""
    config, weights, held_out = machinery.config, model_tensors(machinery.model), history.held_out
    metrics = {
        "steps": config.train.steps,
        "tokens": history.tokens,
        "seconds": history.seconds,
        "toks_per_s": history.tokens / history.seconds if history.seconds else None,
        "parameters": sum(value.numel() for value in weights.values()),
        "first_loss": history.first_loss,
        "final_loss": history.last_loss,
        "first_held_out_loss": held_out.get(0),
        "final_held_out_loss": held_out.get(config.train.steps),
        "best_held_out_loss": min(held_out.values(), default=None),
        "needles_found_by_depth": history.answered or None,
        "held_out_oracle_loss": oracle_loss,
        "entropy": entropy,
        "skipped_steps": history.skipped,
        "lives": history.lives,
    }
    if world.is_first:
        write_weights(folder, weights)
        write_json(folder / "metrics.json", metrics)
        if config.runtime.monitors:
            draw(folder, config.model.vocab_size, entropy, 1 / 3 if config.model.gate == "softmax" else 1 / 2)
    world.wait()
    return metrics
