"""What a run says it is about: vocabulary, entropy, data, batch, schedule; None is what it does not say."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsa_doctor.artifacts.training_run.record import RunRecord

_DEEPEST = 4
_MOST_KEYS = 2000
_NAMES = {
    "vocabulary": ("vocab_size", "vocabulary_size", "padded_vocab_size", "n_vocab"),
    "lr": ("lr", "learning_rate", "max_lr", "peak_lr", "base_lr"),
    "floor": ("lr_floor", "min_lr", "lr_min", "min_learning_rate", "eta_min", "lr_end"),
    "warmup": ("warmup_steps", "num_warmup_steps", "warmup_iters", "lr_warmup_steps", "lr_warmup_iters", "warmup"),
    "steps": ("lr_decay_iters", "lr_decay_steps", "steps", "max_steps", "total_steps", "max_iters", "train_iters"),
    "shape": ("lr_schedule", "schedule", "lr_scheduler_type", "lr_scheduler", "scheduler", "lr_decay_style"),
    "dataset": ("dataset", "dataset_name", "data", "data_path", "train_data", "dataset_path"),
    "rows": ("batch_size", "micro_batch_size", "per_device_train_batch_size"),
    "seq_len": ("seq_len", "block_size", "max_seq_len", "seq_length", "sequence_length", "max_seq_length"),
    "accumulate": ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum", "grad_accum_steps"),
    "tokenizer": ("tokenizer", "tokenizer_name"),
    "precision": ("precision", "dtype", "torch_dtype", "mixed_precision"),
}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Numbers are finite; `shape` is that of the schedule and `dataset` a name, both in lower case and perhaps empty.

    `is_own` is whether the configuration is one of nsa's, which says everything about its schedule; `is_skipping`
    whether a step that is not finite is left out and the run goes on.
    """

    vocabulary: int | None = None
    entropy: float | None = None
    oracle: float | None = None
    lr: float | None = None
    floor: float | None = None
    warmup: float | None = None
    steps: float | None = None
    shape: str = ""
    dataset: str = ""
    tokenizer: str = ""
    precision: str = ""
    seq_len: float | None = None
    tokens_per_step: float | None = None
    is_own: bool = False
    is_skipping: bool = False

    @property
    def guess(self) -> float | None:
        """The loss, in nats, of a guess among the whole vocabulary."""
        return math.log(self.vocabulary) if self.vocabulary and self.vocabulary > 1 else None


def declared(record: RunRecord) -> Declared:
    """What `env.json`, `metrics.json` and a foreign trainer's own words say."""
    settings = {**_flat(record.trainer), **_flat(record.environment)}
    numbers = {
        name: next((n for key in keys if (n := _number(settings.get(key))) is not None), None)
        for name, keys in _NAMES.items()
    }
    words = {
        name: next((t for key in keys if isinstance(t := settings.get(key), str)), "") for name, keys in _NAMES.items()
    }
    train = record.configuration.get("train")
    is_own = isinstance(train, Mapping) and {"lr", "lr_schedule", "lr_floor", "warmup_steps", "steps"} <= train.keys()
    is_own = is_own and numbers["lr"] is not None and numbers["steps"] is not None
    rows, length = numbers["rows"], numbers["seq_len"]
    vocabulary = numbers["vocabulary"]
    return Declared(
        vocabulary=int(vocabulary) if vocabulary is not None and 1 < vocabulary < 1e8 else None,
        entropy=_positive(record.environment.get("entropy")),
        oracle=_positive(record.metrics.get("held_out_oracle_loss")),
        lr=numbers["lr"],
        floor=numbers["floor"],
        warmup=numbers["warmup"],
        steps=numbers["steps"],
        shape=words["shape"].lower(),
        dataset=(_argument(record.environment.get("argv"), "--dataset") or words["dataset"]).lower(),
        tokenizer=words["tokenizer"].lower(),
        precision=words["precision"].lower(),
        seq_len=length,
        tokens_per_step=rows * length * (numbers["accumulate"] or 1) if rows and length else None,
        is_own=is_own,
        is_skipping=settings.get("on_nonfinite") == "skip",
    )


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of every section, in lower case; the shallowest of one name counts."""
    found: dict[str, Any] = {}
    for key, part in _leaves(value):
        if len(found) >= _MOST_KEYS:
            break
        found.setdefault(re.sub(r"\W", "_", key.lower()), part)
    return found


def _leaves(value: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    inner = [part for part in value.values() if isinstance(part, Mapping)]
    yield from ((str(key), part) for key, part in value.items() if not isinstance(part, Mapping))
    if depth < _DEEPEST:
        for part in inner:
            yield from _leaves(part, depth + 1)


def _number(value: Any) -> float | None:
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)  # YAML 1.1 reads 2e-4 as text
        except ValueError:
            return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > 1e15:
        return None
    return float(value) if math.isfinite(value) else None


def _positive(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _argument(argv: Any, name: str) -> str:
    """What a command line gave for an option, in either way of writing it."""
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    for index, word in enumerate(words):
        if word == name and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
