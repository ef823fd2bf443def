"""Training runs as their curves look in the wild, healthy and faulty, drawn from a seed.

A healthy run has a loss, a rate by its schedule, a gradient norm, a pace and a memory with all the noise, spikes and
pauses that real ones have. A faulty one is a healthy one with one quantity gone wrong.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.schedules import due
from nsa_doctor.artifacts.training_run.subject import RunSubject

VOCABULARY = 256
GUESS = math.log(VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run of `steps` steps, logged every `every`; columns may be put in place of the usual ones."""

    seed: int
    steps: int = 400
    every: int = 1
    first: int = 1
    seconds: float = 0.5
    loss: Sequence[float] | None = None
    rate: Sequence[float] | None = None
    norm: Sequence[float] | None = None
    pace: Sequence[float] | None = None
    memory: Sequence[float] | None = None
    fetch: Sequence[float] | None = None
    train: Mapping[str, Any] = field(default_factory=dict)
    data: str = "synthetic"
    entropy: float | None = None
    is_foreign: bool = False

    @property
    def dice(self) -> random.Random:
        """Always the same for a seed."""
        return random.Random(self.seed)

    @property
    def num_points(self) -> int:
        """How many lines."""
        return self.steps // self.every


def subject(of: Curves) -> RunSubject:
    """The run as its folder would show it."""
    dice = random.Random(of.seed + 1)
    train = {"lr": 3e-4, "lr_schedule": "cosine", "lr_floor": 3e-5, "warmup_steps": of.steps // 20, "steps": of.steps}
    train = {**train, "seq_len": 128, "batch_size": 8, **of.train}
    environment = {"config": {"train": train, "model": {"vocab_size": VOCABULARY}, "data": {"dataset": of.data}}}
    environment |= {"entropy": of.entropy} if of.entropy else {}
    record = RunRecord(folder="run", environment={} if of.is_foreign else environment, is_own=not of.is_foreign)
    wanted = declared(replace(record, environment=environment))
    count = of.num_points
    steps = [of.first - 1 + of.every * (index + 1) for index in range(count)]
    columns = {
        "loss": of.loss or power_law(of),
        "learning_rate": of.rate or [due(step - of.first + 1, wanted) for step in steps],
        "grad_norm": of.norm or norms(count, dice),
        "tokens_per_second": of.pace or paces(count, dice),
        "memory": of.memory or memories(count, dice),
        "fetch_seconds": of.fetch or [0.002 * dice.lognormvariate(0, 1) for _ in range(count)],
    }
    beats = [
        Beat(
            ts=1.7e9 + of.seconds * step, step=step, msg="step", **{name: each[index] for name, each in columns.items()}
        )
        for index, step in enumerate(steps)
    ]
    return RunSubject(name="run", record=replace(record, beats=tuple(beats)), now=1.7e9, options=("run",))


def power_law(of: Curves, *, noise: float = 0.04, end: float | None = None, start: float = GUESS + 0.05) -> list[float]:
    """From a guess down to about `end`, as a power of the step."""
    dice = of.dice
    last = dice.uniform(1.0, 3.0) if end is None else end
    pace = dice.uniform(0.01, 0.1)
    return [
        last + (start - last) / (1 + pace * of.every * index) ** 0.7 + dice.gauss(0, noise)
        for index in range(of.num_points)
    ]


def norms(count: int, dice: random.Random) -> list[float]:
    """About one, twice at first, with rare spikes."""
    return [
        (1 + math.exp(-index / 20))
        * dice.lognormvariate(0, 0.3)
        * (dice.choice((10, 40)) if dice.random() < 0.005 else 1)
        for index in range(count)
    ]


def paces(count: int, dice: random.Random) -> list[float]:
    """Tokens a second on a machine with neighbours: slow at first, at times half as fast for a while."""
    kind, start = dice.choice(("quiet", "neighbour", "pauses")), dice.randrange(count)
    found = []
    for index in range(count):
        slow = 8.0 if index < 2 else 1.0
        slow *= 2.0 if kind == "neighbour" and start <= index else 1.0
        slow *= 5.0 if kind == "pauses" and dice.random() < 0.1 else 1.0
        found.append(20_000 / slow * dice.lognormvariate(0, 0.15))
    return found


def memories(count: int, dice: random.Random) -> list[float]:
    """Bytes that settle, in one of the ways they do."""
    kind, base = dice.choice(("flat", "settles", "steps", "saw", "creeps")), dice.uniform(1e8, 4e10)
    how: Mapping[str, Callable[[int], float]] = {
        "flat": lambda index: 1.0,
        "settles": lambda index: 1 - 0.5 * math.exp(-8 * index / count),
        "steps": lambda index: 1 + 0.2 * (index > count // 10) + 0.1 * (index > count // 3),
        "saw": lambda index: 1 + 0.3 * (index % 37) / 37,
        "creeps": lambda index: 1 + 0.008 * index / count,
    }
    return [base * how[kind](index) * (1 + abs(dice.gauss(0, 0.001))) for index in range(count)]


def drifting(count: int, dice: random.Random, spread: float, memory: float = 0.95) -> list[float]:
    """Noise that remembers."""
    found, value = [], 0.0
    for _ in range(count):
        value = memory * value + math.sqrt(1 - memory**2) * dice.gauss(0, spread)
        found.append(value)
    return found


def with_spikes(of: Curves, losses: Sequence[float]) -> list[float]:
    """Three spikes that fade, one of them perhaps at the end."""
    dice, found = random.Random(of.seed + 2), list(losses)
    for _ in range(3):
        at, height, fade = dice.randrange(len(found)), dice.uniform(0.5, 3.0), dice.uniform(2, 12)
        for index in range(at, len(found)):
            found[index] += height * math.exp(-(index - at) / fade)
    return found


def _restarting(of: Curves) -> Curves:
    quarter = of.num_points // 4
    losses = [
        loss + 0.25 * math.exp(-(index % quarter) / 15) * (index >= quarter)
        for index, loss in enumerate(power_law(of, end=2.0))
    ]
    rates = [1.5e-4 * (1.05 + math.cos(math.pi * (index % quarter) / quarter)) for index in range(of.num_points)]
    return replace(
        of, loss=losses, rate=rates, train={"lr_schedule": "cosine_with_restarts", "lr_floor": None}, is_foreign=True
    )


def _epochs(of: Curves) -> Curves:
    length = of.num_points // 3
    losses = [
        1.9 - 0.35 * (index // length) + 0.05 * (index % length) / length + of_noise
        for index, of_noise in enumerate(drifting(of.num_points, of.dice, 0.05, 0.3))
    ]
    return replace(of, loss=losses)


def _sudden(of: Curves) -> Curves:
    """A plateau, then understanding: the gradient rises fifty times, and falls with the loss."""
    dice, count = of.dice, of.num_points
    at = dice.uniform(0.3, 0.7) * count
    falls = [1 / (1 + math.exp((index - at) / (0.03 * count))) for index in range(count)]
    losses = [
        max(1e-4, 2.2 * fall + 0.01 * dice.lognormvariate(0, 1)) + 0.5 * math.exp(-i / 5)
        for i, fall in enumerate(falls)
    ]
    gradients = [(0.03 + 1.5 * 4 * fall * (1 - fall)) * dice.lognormvariate(0, 0.4) for fall in falls]
    return replace(of, loss=losses, norm=gradients)


HEALTHY: Mapping[str, Callable[[Curves], Curves]] = {
    "power law": lambda of: of,
    "batches of one": lambda of: replace(of, loss=power_law(of, noise=0.5)),
    "noise that remembers": lambda of: replace(
        of, loss=[a + b for a, b in zip(power_law(of), drifting(of.num_points, of.dice, 0.1), strict=True)]
    ),
    "spikes": lambda of: replace(of, loss=with_spikes(of, power_law(of))),
    "epochs": _epochs,
    "restarts": _restarting,
    "fine-tuning": lambda of: replace(of, loss=[1.6 + x for x in drifting(of.num_points, of.dice, 0.12, 0.5)]),
    "fine-tuning, foreign": lambda of: replace(
        of, loss=[2.4 + x for x in drifting(of.num_points, of.dice, 0.2, 0.3)], is_foreign=True
    ),
    "late plateau": lambda of: replace(
        of, first=50_001, loss=[2.9 + x for x in drifting(of.num_points, of.dice, 0.03)], is_foreign=True
    ),
    "early in a warm-up": lambda of: replace(
        of,
        steps=60,
        loss=[GUESS + 0.1 + of_noise for of_noise in drifting(60, of.dice, 0.03, 0.2)],
        train={"warmup_steps": 60, "lr": 6e-6},
    ),
    "sudden": _sudden,
    "logged rarely": lambda of: replace(of, every=20),
    "short": lambda of: replace(of, steps=15),
    "slow": lambda of: replace(of, loss=power_law(of, end=GUESS - 0.25, noise=0.01)),
    "another mixture of data": lambda of: replace(
        of, loss=[x + 0.25 * (i > 0.6 * of.num_points) for i, x in enumerate(power_law(of, end=1.5))]
    ),
    "at the entropy": lambda of: replace(of, entropy=0.72, loss=power_law(of, end=0.73, noise=0.08)),
    "foreign": lambda of: replace(of, is_foreign=True),
    "constant rate": lambda of: replace(of, train={"lr_schedule": "constant", "lr_floor": 0.0}),
    "text that is vast": lambda of: replace(of, data="fineweb_edu", loss=power_law(of, end=1.1)),
}


def _from(of: Curves, share: float, change: Callable[[float, float], float], values: Sequence[float]) -> list[float]:
    """The values, from a share of the run on changed by how much of the rest has gone by."""
    start = share * len(values)
    rest = len(values) - start
    return [x if i < start else change(x, (i - start) / rest) for i, x in enumerate(values)]


def _flat(of: Curves, noise: float = 0.03) -> list[float]:
    return [
        GUESS + 0.01 + 0.1 * math.exp(-i / 5) + of.dice.gauss(0, 0) + x
        for i, x in enumerate(drifting(of.num_points, of.dice, noise, 0.1))
    ]


def _rates(of: Curves, change: Callable[[int, float], float]) -> list[float]:
    beats = subject(of).record.beats
    return [change(beat.step or 0, beat.learning_rate or 0.0) for beat in beats]


FAULTY: Mapping[str, tuple[str, Callable[[Curves], Curves]]] = {
    "nan": ("TRN201", lambda of: replace(of, loss=_from(of, 0.6, lambda x, t: math.nan, power_law(of)))),
    "gradient nan": (
        "TRN201",
        lambda of: replace(of, norm=_from(of, 0.6, lambda x, t: math.inf, norms(of.num_points, of.dice))),
    ),
    "learns nothing": ("TRN202", lambda of: replace(of, loss=_flat(of))),
    "learns nothing, batches of one": ("TRN202", lambda of: replace(of, loss=_flat(of, 0.3))),
    "one number": ("TRN202", lambda of: replace(of, loss=[2.345678] * of.num_points)),
    "climbs": (
        "TRN203",
        lambda of: replace(
            of, loss=[GUESS + x + 0.004 * i for i, x in enumerate(drifting(of.num_points, of.dice, 0.03, 0.1))]
        ),
    ),
    "climbs, batches of one": (
        "TRN203",
        lambda of: replace(
            of, loss=[GUESS + x + 0.006 * i for i, x in enumerate(drifting(of.num_points, of.dice, 0.4, 0.1))]
        ),
    ),
    "turns": (
        "TRN203",
        lambda of: replace(of, loss=_from(of, of.dice.uniform(0.3, 0.7), lambda x, t: x + 3 * t, power_law(of))),
    ),
    "diverges late": (
        "TRN203",
        lambda of: replace(of, loss=_from(of, 0.94, lambda x, t: x + 40 * t + 2, power_law(of))),
    ),
    "falls back to a guess": (
        "TRN203",
        lambda of: replace(of, loss=_from(of, 0.7, lambda x, t: GUESS + (x - 2) * 0.05, power_law(of))),
    ),
    "below the entropy": (
        "TRN204",
        lambda of: replace(of, entropy=0.72, loss=[0.1 + 5 * 0.97**i for i in range(of.num_points)]),
    ),
    "text too easy": (
        "TRN204",
        lambda of: replace(
            of, data="fineweb_edu", steps=200, loss=[5.43 * (0.28 / 5.43) ** min(1, i / 150) for i in range(200)]
        ),
    ),
    "rate at a floor": ("TRN301", lambda of: replace(of, rate=[1e-7] * of.num_points)),
    "rate of zero": (
        "TRN301",
        lambda of: replace(of, rate=_rates(of, lambda step, rate: 0.0 if step > of.steps // 2 else rate)),
    ),
    "half the pace": (
        "TRN302",
        lambda of: replace(of, rate=_rates(of, lambda step, rate: due((step + 1) // 2, declared(subject(of).record)))),
    ),
    "no warm-up": (
        "TRN302",
        lambda of: replace(of, rate=_rates(of, lambda step, rate: max(rate, 3e-4) if step < 20 else rate)),
    ),
    "ten times the rate": ("TRN302", lambda of: replace(of, rate=_rates(of, lambda step, rate: 10 * rate))),
    "rate below zero": (
        "TRN302",
        lambda of: replace(of, is_foreign=True, rate=_rates(of, lambda step, rate: rate - 6e-5)),
    ),
    "gradient explodes": (
        "TRN303",
        lambda of: replace(of, norm=_from(of, 0.5, lambda x, t: x * 10 ** (1 + 8 * t), norms(of.num_points, of.dice))),
    ),
    "gradient explodes at once": (
        "TRN303",
        lambda of: replace(of, norm=_from(of, 0.8, lambda x, t: 2e4 * x, norms(of.num_points, of.dice))),
    ),
    "gradient zero": ("TRN304", lambda of: replace(of, loss=_flat(of), norm=[0.0] * of.num_points)),
    "gradient vanishes": (
        "TRN304",
        lambda of: replace(
            of,
            loss=power_law(of, end=5.0, noise=0.02),
            norm=_from(of, 0.3, lambda x, t: 1e-8 * x, norms(of.num_points, of.dice)),
        ),
    ),
    "slower and slower": (
        "TRN401",
        lambda of: replace(
            of,
            pace=[
                20_000 / (1 + 2 * i / of.num_points) * of.dice.lognormvariate(0, 0) * math.exp(x)
                for i, x in enumerate(drifting(of.num_points, of.dice, 0.1, 0.1))
            ],
        ),
    ),
    "ever slower": (
        "TRN401",
        lambda of: replace(
            of,
            pace=[
                20_000 * 0.4 ** (i / of.num_points) * math.exp(x)
                for i, x in enumerate(drifting(of.num_points, of.dice, 0.1, 0.1))
            ],
        ),
    ),
    "six times slower": (
        "TRN401",
        lambda of: replace(
            of,
            seconds=3.0,
            pace=_from(
                of, 0.5, lambda x, t: x / 6, [20_000 * math.exp(x) for x in drifting(of.num_points, of.dice, 0.1, 0.1)]
            ),
        ),
    ),
    "memory grows": ("TRN402", lambda of: replace(of, memory=[6.9e7 + 5e5 * i for i in range(of.num_points)])),
    "memory grows on a large base": (
        "TRN402",
        lambda of: replace(
            of, memory=[2e10 + 8e6 * i + 1e7 * x for i, x in enumerate(drifting(of.num_points, of.dice, 1, 0.1))]
        ),
    ),
    "waits": (
        "TRN403",
        lambda of: replace(
            of,
            fetch=[0.09] * of.num_points,
            pace=[1024 / (0.13 * math.exp(x)) for x in drifting(of.num_points, of.dice, 0.1, 0.1)],
        ),
    ),
}
