"""Which faults are put to the doctor: every condition once, effects and hosts in balance, drawn by a seed."""

import random
from collections import Counter
from collections.abc import Iterator

from tests.false_go.conditions import CONDITIONS
from tests.false_go.effects import EFFECTS
from tests.false_go.fault import Condition, Effect, Fault, Host

INNER_AND_OUTER = {"mixer": "mixer", "model": "model"}
WITH_STEPS = INNER_AND_OUTER | {"step": "mixer"}
HOSTS = (
    Host(name="block", input="embeddings", sites=INNER_AND_OUTER, paths={"mixer": ("attn",), "model": ("",)}),
    Host(
        name="decoder",
        input="tokens",
        sites=INNER_AND_OUTER,
        paths={"mixer": ("layers.0.attention", "layers.1.attention"), "model": ("",)},
        max_length=512,
    ),
    Host(
        name="cached",
        input="tokens",
        sites=WITH_STEPS,
        paths={"mixer": ("mixers.0", "mixers.1"), "model": ("",)},
        max_length=1024,
    ),
    Host(
        name="sparse",
        input="embeddings",
        sites={"mixer": "mixer", "model": "mixer", "step": "mixer"},
        paths={"mixer": ("",)},
        max_length=80,
        refuses=frozenset({"create_graph"}),  # its operator computes no second derivatives
    ),
    Host(name="recurrence", input="embeddings", sites=WITH_STEPS, paths={"mixer": ("scan",), "model": ("",)}),
    Host(name="multihead", input="embeddings", sites=INNER_AND_OUTER, paths={"mixer": ("attention",), "model": ("",)}),
    Host(
        name="encoder",
        input="tokens",
        sites=INNER_AND_OUTER,
        paths={"mixer": ("layers.0", "layers.1"), "model": ("",)},
    ),
)


def product() -> Iterator[Fault]:
    """Every possible fault."""
    for host in HOSTS:
        for condition in CONDITIONS:
            for effect in EFFECTS:
                fault = Fault(host, condition, effect)
                if fault.is_possible:
                    yield fault


def drawn(seed: int, count: int) -> list[Fault]:
    """`count` faults: each condition before any comes twice, and of what a condition allows what is rarest so far."""
    chance = random.Random(seed)
    possible: dict[Condition, list[Fault]] = {}
    for fault in product():
        possible.setdefault(fault.condition, []).append(fault)
    used: Counter[Host | Effect] = Counter()
    chosen: dict[str, Fault] = {}
    while len(chosen) < count:
        for condition in chance.sample(CONDITIONS, len(CONDITIONS)):
            left = [fault for fault in possible[condition] if fault.name not in chosen]
            if not left:
                return list(chosen.values())
            chance.shuffle(left)
            fault = min(left, key=lambda each: 2 * used[each.host] / len(EFFECTS) * len(HOSTS) + used[each.effect])
            used.update((fault.host, fault.effect))
            chosen[fault.name] = fault
            if len(chosen) == count:
                break
    return list(chosen.values())
