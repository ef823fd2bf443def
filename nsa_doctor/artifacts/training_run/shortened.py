"""A short run of what is configured for a long one."""

from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.core.errors import UsageError

_MOST_WARMUP = 0.25  # of the steps: a longer one would leave nothing to see
_USUAL_WARMUP = 0.1
_CHECKPOINTS = 3  # half-way, where it is asked to stop, and the last


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """A configuration file for a short run of a long one, and what had to be changed beside its steps."""

    text: str
    watchdog_seconds: float
    is_compiled: bool
    notes: tuple[str, ...] = ()


def shortened(source: str, dataset: str | None, steps: int, folder: Path, device: str, changes: list[str]) -> Shortened:
    """The configuration `source`, changed, for so many steps; raises UsageError."""
    import yaml

    from nsa.config import as_document, load_config, parse_config, with_changes
    from nsa.strict import ConfigError

    notes = []
    try:
        config = with_changes(load_config(source), changes)
        warmup = config.train.warmup_steps
        if warmup > steps * _MOST_WARMUP:
            warmup = int(steps * _USUAL_WARMUP)
            notes.append(f"warm-up of {warmup} steps in place of {config.train.warmup_steps}: the run is {steps} long")
        document = as_document(config)
        document["train"] = document.get("train", {}) | {
            "steps": steps,
            "warmup_steps": warmup,
            "save_every": steps // 2,
            "keep_last": max(config.train.keep_last, _CHECKPOINTS),
            "out_dir": str(folder),
            "on_nonfinite": "trace" if config.train.on_nonfinite == "stop" else config.train.on_nonfinite,
        }
        document["runtime"] = document.get("runtime", {}) | {"device": device}
        if dataset is not None:
            document["data"] = document.get("data", {}) | {"dataset": dataset}
        config = parse_config(document)
    except ConfigError as error:
        raise UsageError(f"--config {error}") from error
    return Shortened(
        text=yaml.safe_dump(document, sort_keys=False),
        watchdog_seconds=config.train.watchdog_seconds,
        is_compiled=config.runtime.compile,
        notes=tuple(notes),
    )
