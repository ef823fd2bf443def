"""What `nsa` owes by its equations: a mistake anywhere in it is noticed, and no configuration is accused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from nsa.config import NSAConfig, load_config
from nsa.nn import attention, cache, gate, rope
from nsa.ops import api, geometry, tiles
from nsa.ops.select import dense
from nsa.ops.select import vectorized as select
from nsa.ops.slide import reference as slide_reference
from nsa.ops.slide import vectorized as slide
from nsa_doctor.adapters.nsa_layer import layer_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE

CODES = ("FWD301", "FWD302", "FWD303", "FWD306", "FWD307", "NAN106", "NAN107")
CONFIGS: dict[str, dict[str, object]] = {
    "mlp-shared": {"phi": "mlp", "shared_kv": True},
    "conv-sigmoid-wider-values": {"phi": "conv", "gate": "sigmoid", "d_v": 6},
    "one-head-per-group": {"n_kv_groups": 4, "gate_temperature": 0.5},
    "touching-blocks-of-one-size": {"l": 8, "d": 8, "l_sel": 8, "n_sel": 3, "w": 1, "n_kv_groups": 1},
}


def layer(**changes: object) -> Subject:
    base = load_config(str(HERE / "small.yaml")).model
    values = {name: getattr(base, name) for name in NSAConfig.model_fields}
    return layer_subject(NSAConfig.model_validate({**values, **changes}))


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_no_configuration_is_accused(changes: dict[str, object]) -> None:
    subject = layer(**changes)
    found = {code: run_check(registry.load(code), subject) for code in CODES}
    assert {code: r.findings or r.reason for code, r in found.items() if r.verdict is not Verdict.PASS} == {}


@pytest.mark.parametrize("seed", [*range(1, 3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 30))])
def test_no_seed_is_accused(seed: int, small: Subject) -> None:
    found = {code: run_check(registry.load(code), replace(small, seed=seed)) for code in CODES}
    assert {code: r.findings or r.reason for code, r in found.items() if r.verdict is not Verdict.PASS} == {}


def one_more_key(window: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    age = window.first_query + query - key
    return (age >= 0) & (age <= window.w)


def no_local_block(_: object, query: int) -> tuple[int, ...]:
    return tuple(sorted({0, query // 16}))


def unscaled(q: torch.Tensor, k: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    return tiles.score(q, k, room) * q.shape[-1] ** 0.5


MUTATIONS: dict[str, tuple[str, str, object, str, Callable[..., Any]]] = {
    "window": ("FWD303", "sliding", slide._Window, "visible", one_more_key),
    "window-by-oracle": ("FWD301", "the sliding branch differs", slide._Window, "visible", one_more_key),
    "scale": ("FWD302", "attend covers", select, "score", unscaled),
    "dense": ("FWD302", "selected branch", dense.Causal, "visible", lambda band, query, key: key < band.first_query + (
        query + (query == 0))),
    "forced": ("FWD301", "under implementation reference", geometry.Geometry, "forced_blocks", no_local_block),
    "last-token": ("FWD303", "attend", select, "_ceiling_table", lambda length, dtype, device: torch.cat(
        (torch.full((1, length), -torch.inf, dtype=dtype), ceilings(length, dtype)[:-1]))),
    "rope": ("FWD301", "every branch does what", attention, "rotation", lambda at, size, theta, dtype: rope.rotation(
        at, size, theta**0.5, dtype)),
    "gate": ("FWD301", "every branch does what", gate, "silu", torch.tanh),
    "reference-window": ("FWD301", "under implementation reference", slide_reference, "_attend",
                         lambda q, k, v: (q @ k.mT / q.shape[-1]).softmax(-1) @ v),
    "packed-window": ("FWD306", "packed", api, "_sliding_packed", lambda q, k, v, geometry, *_: slide.sliding_attention(
        q, k, v, geometry)),
    "dropped-too-early": ("DEC101", "in step", cache.TokenBuffer, "drop_to", lambda self, count: setattr(
        self, "_start", max(self._start, self._end - count + 1))),
}  # fmt: skip


def ceilings(length: int, dtype: torch.dtype) -> torch.Tensor:
    hidden = torch.ones(length + 1, length, dtype=torch.bool).triu()
    return torch.full(hidden.shape, torch.inf, dtype=dtype).masked_fill_(hidden, -torch.inf)


@pytest.mark.parametrize(("code", "message", "owner", "name", "faulty"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_mistake_in_nsa_is_noticed(
    code: str, message: str, owner: object, name: str, faulty: Callable[..., Any], small: Subject, monkeypatch: Any
) -> None:
    monkeypatch.setattr(owner, name, faulty)
    result = run_check(registry.load(code), small)
    assert result.verdict is Verdict.FAIL, result.reason
    assert any(message in finding.message for finding in result.findings), [f.message for f in result.findings]
    assert result.findings[0].where.module_class == "NSAttention"


def test_reach_is_seen_without_an_anatomy(small: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    shy = replace(small, anatomy=None, attend=None)
    assert run_check(registry.load("FWD303"), shy).verdict is Verdict.PASS
    monkeypatch.setattr(slide._Window, "visible", one_more_key)
    result = run_check(registry.load("FWD303"), shy)
    assert "sliding: token 24 of S=73 reads 0, which it may not" in result.findings[0].message


def test_an_option_that_nothing_reads_is_found(small: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(gate.Gate):
        def forward(self, query_mean):
            self.temperature = 1.0
            return super().forward(query_mean)

    monkeypatch.setattr(attention, "Gate", Deaf)
    result = run_check(registry.load("FWD307"), small)
    assert [finding.evidence["option"] for finding in result.findings] == ["gate_temperature"]
