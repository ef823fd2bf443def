"""Which column of a log is which quantity of a heartbeat: by the mapping asked for, else by what columns are called."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nsa.strict import nearest, plain
from nsa_doctor.artifacts.training_run.record import Beat

Row = Mapping[str, Any]
Plan = list[tuple[str, list[tuple[str, str]]]]  # quantity, and (normal name, column) of what may hold it
_MOST_COLUMNS = 4096
_MOST_PLANS = 256
_LONGEST_MESSAGE = 200
_LARGEST_RANK = 10**6
# What logs call each quantity, in lower case and with _ for other signs; the first that a row has counts.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "ts": (
        *("ts", "timestamp", "time", "wall_time", "walltime", "wall_clock", "unix_time", "datetime", "date_time"),
        *("created_at", "asctime", "iso", "date", "runtime", "elapsed", "elapsed_s", "elapsed_seconds"),
        *("elapsed_time", "relative_time", "total_time"),
    ),
    "step": (
        *("step", "iteration", "global_step", "iter", "train_global_step", "trainer_global_step", "train_step"),
        *("training_step", "optimizer_step", "opt_step", "num_updates", "update", "updates", "iter_num", "steps", "it"),
        *("train_iter", "current_iteration"),
    ),
    "loss": (
        *("loss", "train_loss", "training_loss", "train_loss_step", "loss_step", "loss_train", "lm_loss"),
        *("train_lm_loss", "nll", "nll_loss", "ce_loss", "cross_entropy", "train_cross_entropy", "total_loss"),
        *("train_total_loss", "loss_total", "train_loss_total", "train_loss_ce", "loss_metrics_global_avg_loss"),
        *("loss_train_total", "train_nll", "train_ppl_loss", "train_inner_loss", "batch_loss", "mean_loss"),
        *("avg_loss", "running_loss", "train_running_loss", "train_loss_epoch", "xent"),
    ),
    "eval_loss": (
        *("eval_loss", "val_loss", "valid_loss", "validation_loss", "heldout_loss", "held_out_loss", "test_loss"),
        *("dev_loss", "loss_val", "loss_valid", "loss_eval", "eval_lm_loss", "val_loss_epoch", "metrics_eval_loss"),
        "validation_metrics_loss",
    ),
    "tokens_per_second": (
        *("toks_per_s", "tokens_per_second", "tok_s", "tokens_per_sec", "tps", "toks_s", "tokens_s", "tok_per_s"),
        *("tok_sec", "tokens_sec", "throughput_tps", "train_tokens_per_second", "throughput_tokens_per_sec"),
        *("throughput_tokens_per_second", "throughput_device_tokens_per_sec", "device_tokens_per_sec", "tgs"),
        *("train_tok_s", "train_toks_per_s", "train_tokens_per_sec", "perf_tokens_per_second"),
    ),
    "fetch_seconds": (
        *("dt_fetch_s", "fetch_seconds", "fetch_s", "data_time", "data_s", "dataloader_time", "data_loading_time"),
        *("time_data", "fetch_time", "time_metrics_data_loading_s", "data_wait_s"),
    ),
    "grad_norm": (
        *("grad_norm", "gradient_norm", "gnorm", "gradnorm", "train_grad_norm", "train_gradient_norm"),
        *("total_grad_norm", "grad_norm_total", "global_grad_norm", "grad_2_0_norm_total", "l2_norm_grad_global"),
        *("optim_grad_norm", "optimizer_grad_norm", "train_gnorm"),
    ),
    "learning_rate": (
        *("lr", "learning_rate", "train_lr", "train_learning_rate", "optim_lr", "optim_learning_rate", "current_lr"),
        *("lr_0", "learning_rate_0", "lr_adamw", "lr_adam", "lr_sgd", "lr_adamw_pg1", "lr_pg1", "lr_group0"),
        *("optimizer_lr", "optimizer_learning_rate", "lr_decoupledadamw_group0", "lr_adamw_0"),
    ),
    "memory": (
        *("gpu_mem_alloc", "memory_bytes", "rss_bytes", "gpu_memory_allocated", "memory_allocated", "gpu_memory"),
        *("cuda_memory_allocated", "memory", "max_memory_allocated", "gpu_mem", "mem", "peak_memory", "gpu_mem_gb"),
        *("memory_gb", "mem_gb", "gpu_memory_gb", "gpu_mem_mb", "memory_mb", "mem_mb", "gpu_memory_mb", "rss_mb"),
        *("memory_max_active_gib", "memory_max_reserved_gib", "peak_memory_gb", "peak_mem_gb", "rss_gb"),
    ),
    "pid": ("pid",),
    "rank": ("rank", "global_rank", "process_index"),
    "epoch": ("epoch", "train_epoch"),
}
# What --map calls a quantity, where it is not its own name.
ALIASES = {
    "time": "ts",
    "timestamp": "ts",
    "lr": "learning_rate",
    "toks_per_s": "tokens_per_second",
    "dt_fetch_s": "fetch_seconds",
    "mem": "memory",
    "gpu_mem_alloc": "memory",
    "val_loss": "eval_loss",
    "iteration": "step",
}
_TEXTS = ("msg", "batch")
MAPPED = (*SYNONYMS, *_TEXTS)
_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_UNITS = ((re.compile(r"(_|^)(gb|gib)$"), 1e9), (re.compile(r"(_|^)(mb|mib)$"), 1e6))
_TIME_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # nano, micro, milliseconds since the epoch


class MappingError(ValueError):
    """A mapping that cannot be used; one sentence says why."""


@dataclass
class Columns:
    """Where a log's quantities are; `mapping` is by quantity. Remembers the columns it has seen."""

    mapping: Mapping[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)  # column: as synonyms are written
    _plans: dict[tuple[str, ...], Plan] = field(default_factory=dict)

    def note(self, names: Iterable[str]) -> None:
        """Columns that a log has."""
        for name in names:
            if name not in self.seen and len(self.seen) < _MOST_COLUMNS:
                self.seen[name] = normal(name)

    def find(self, row: Row) -> dict[str, tuple[str, Any]]:
        """By quantity, the column's normal name and what the row has in it; nothing of what it does not have."""
        names = tuple(row)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plan(names)
            if len(self._plans) < _MOST_PLANS:
                self._plans[names] = plan
        found: dict[str, tuple[str, Any]] = {}
        for quantity, candidates in plan:
            name, column = candidates[0]
            if len(candidates) > 1:
                name, column = next((each for each in candidates if row[each[1]] is not None), candidates[0])
            found[quantity] = name, row[column]
        return found

    def _plan(self, names: tuple[str, ...]) -> Plan:
        """For each quantity the columns that may hold it, the likeliest first."""
        self.note(names)
        by_name: dict[str, str] = {}
        for column in names:
            by_name.setdefault(self.seen.get(column, ""), column)
        plan: list[tuple[str, list[tuple[str, str]]]] = []
        for quantity in MAPPED:
            wanted = self.mapping.get(quantity)
            if wanted is not None and wanted in names:
                plan.append((quantity, [(normal(wanted), wanted)]))
                continue
            synonyms = SYNONYMS.get(quantity, (quantity,)) if wanted is None else (normal(wanted),)
            candidates = [
                (name, by_name[name]) for name in synonyms if name in by_name and not self._is_of_epochs(name)
            ]
            if candidates:
                plan.append((quantity, candidates))
        return plan

    def _is_of_epochs(self, name: str) -> bool:
        """Whether a column tells the mean over an epoch of what another tells of its steps."""
        names = self.seen.values()
        base = name.removesuffix("_epoch")
        return base != name and (f"{base}_step" in names or base in names)

    def check(self, where: str) -> None:
        """Raise MappingError for a mapped column that no row has had."""
        known = {*self.seen, *self.seen.values()}
        for quantity, column in self.mapping.items():
            if column not in known and normal(column) not in known:
                raise MappingError(
                    f"{quantity}={plain(column)}: {where} has no such column: {nearest(column, self.seen)}"
                )


def parse_mapping(words: Sequence[str]) -> dict[str, str]:
    """`step=global_step,loss=train/loss`, also given several times; raises MappingError with one sentence."""
    made: dict[str, str] = {}
    for part in (part for word in words for part in word.split(",")):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not (equals and name and column):
            raise MappingError(f"must read QUANTITY=COLUMN, such as loss=train/loss, got {plain(part)!r}")
        quantity = ALIASES.get(name, name)
        if quantity not in MAPPED:
            raise MappingError(f"knows no quantity {plain(name)!r}: {nearest(name, (*MAPPED, *ALIASES))}")
        if made.get(quantity, column) != column:
            raise MappingError(f"gives {name} twice, as {plain(made[quantity])} and as {plain(column)}; leave one out")
        made[quantity] = column
    return made


def normal(name: str) -> str:
    """A column's name in lower case, with _ for all that is neither letter nor digit.

    A chart that wandb exports calls its columns `name of the run - train/loss`.
    """
    own = name[:_LONGEST_MESSAGE].rpartition(" - ")[2]
    return re.sub(r"[^a-z0-9]+", "_", own.lower()).strip("_")


def beat_of(found: Mapping[str, tuple[str, Any]], rank: int) -> Beat:
    """The heartbeat that a row is."""
    values = {quantity: number(value) for quantity, (_, value) in found.items() if quantity not in _TEXTS}
    loss = values.get("loss")
    if loss is None and "loss" in found and _is_not_a_number(found["loss"][1], values):
        loss = math.nan
    own_rank = whole(values.get("rank"))
    msg, batch = (found.get(name, ("", ""))[1] for name in _TEXTS)
    return Beat(
        ts=time_of(found["ts"][1]) if "ts" in found else None,
        rank=own_rank if own_rank is not None and 0 <= own_rank < _LARGEST_RANK else rank,
        step=whole(values.get("step")),
        msg=msg[:_LONGEST_MESSAGE] if isinstance(msg, str) else "",
        loss=loss,
        tokens_per_second=values.get("tokens_per_second"),
        fetch_seconds=values.get("fetch_seconds"),
        grad_norm=values.get("grad_norm"),
        learning_rate=values.get("learning_rate"),
        memory=_bytes(*found["memory"]) if "memory" in found else None,
        pid=whole(values.get("pid")),
        batch=batch if isinstance(batch, str) and _CHECKSUM.fullmatch(batch) else None,
    )


def number(value: Any) -> float | None:
    """The number that it is; JSON's and CSV's NaN and infinities are numbers, true and false are none."""
    if type(value) is float:
        return value
    if value is None or value is True or value is False:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(value: float | None) -> int | None:
    """A whole number that a float holds exactly."""
    if value is None or not -(2**53) < value < 2**53:  # NaN is not either
        return None
    made = int(value)
    return made if made == value else None


def _is_not_a_number(value: Any, values: Mapping[str, float | None]) -> bool:
    """Whether a loss that is none means NaN: null is how many loggers write it, in the line of a training step."""
    if isinstance(value, str):
        return value.strip().lower().lstrip("+-") in ("nan(ind)", "1.#qnan", "1.#ind", "null", "none")
    is_a_step = values.get("tokens_per_second") is not None or values.get("grad_norm") is not None
    return value is None and is_a_step


def _bytes(name: str, value: Any) -> float | None:
    amount = number(value)
    factor = next((factor for pattern, factor in _UNITS if pattern.search(name)), 1.0)
    return None if amount is None else amount * factor


def time_of(value: Any) -> float | None:
    """Seconds since the epoch, or since whatever the log counts from; a date without a zone is in this machine's."""
    amount = number(value)
    if amount is not None:
        if abs(amount) < _TIME_UNITS[-1][0]:
            return amount
        return next((amount * factor for least, factor in _TIME_UNITS if abs(amount) >= least), amount)
    if not isinstance(value, str) or not 8 <= len(value) <= 40:
        return None
    try:
        return datetime.fromisoformat(value.strip().replace(",", ".")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
