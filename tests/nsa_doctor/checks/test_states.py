"""States that depend on the way tokens come in are found by field, kind and line; equivalent ones are left alone."""

import linecache
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.model.state_fields import Field, fields_of, put
from nsa_doctor.probes.numerics.field_difference import difference
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty import states
from tests.gallery.faulty.nsa_like import decoder
from tests.gallery.faulty.states import Convolution, convolution, held, ring, two_branches

FAULTY = [  # host, illness, the field, what is said of it, what its line holds
    (two_branches, "window raw", "cache.near.k", "rotations of each other", "(self.q, self.k, self.v)"),
    (two_branches, "window one on", "cache.near.k", "the second turned as for 1 position earlier", "rotate(raw, 1)"),
    (two_branches, "window shifted", "cache.near.k", "6 of 6 positions", "rotate(raw, 0)"),
    (two_branches, "blocks unfilled", "cache.far.k", "the first way leaves zeros", "torch.zeros_like(blocks_k)"),
    (two_branches, "blocks halved", "cache.far.v", "the second values are 2 times the first", "0.5 if"),
    (two_branches, "waiting forgotten", "cache.waiting[0]", "left by the second way alone", "state.waiting ="),
    (two_branches, "length one on", "cache.length", "is 38 and 37", "state.length ="),
    (
        two_branches,
        "steps at 0",
        "cache.near.k",
        "the second turned as for 31 positions earlier",
        'rotate(k, 0 if self.illness == "steps',
    ),
    (ring, "ring begins anew", "cache['ring']", "what belongs at 1, as does cache['next']", '"ring"'),
    (convolution, "tail unfilled", "cache.tail", "the first way leaves zeros", "torch.zeros_like(tail)"),
    (held, "one slot on", "module.memory", "what belongs at", "self.memory[:, room] = kv"),
    (held, "prompt cut", "module.memory", "the first way leaves zeros", "self.memory[:, 0] = 0.0"),
]


def examined(subject: Subject, code: str = "DEC111") -> Result:
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(
    ("host", "illness", "field", "said", "line"), FAULTY, ids=[each[1].replace(" ", "-") for each in FAULTY]
)
def test_a_field_left_differently_is_named_with_its_line(
    host: Any, illness: str, field: str, said: str, line: str
) -> None:
    finding = examined(host(illness)).findings[0]
    assert finding.evidence["branch"] == field
    assert said in finding.message
    assert finding.where.file == states.__file__
    assert line in linecache.getline(finding.where.file, finding.where.line)


@pytest.mark.parametrize("host", [two_branches, ring, convolution, held])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_other_representations_of_one_state_are_silent(host: Any, seed: int) -> None:
    result = examined(replace(host(), seed=seed))
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_a_fault_of_the_computation_is_none_of_the_state() -> None:
    result = examined(decoder("window off by one"))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class Fused(Convolution):
    """Keeps beside its state what no later token reads."""

    def run(self, x: Tensor, state: Any) -> Any:
        y, kept = super().run(x, None if state is None else state[0])
        return y, (kept, {"last part": x.mean(1), "calls": 1 if state is None else state[1]["calls"] + 1})


def test_fields_that_nothing_reads_are_silent() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Fused()

    result = examined(replace(convolution(), build=build))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("code", ["DEC102", "DEC106", "DEC107", "DEC110"])
def test_steps_that_differ_hide_no_other_fault_of_decoding(code: str) -> None:
    """Steps are off by a hundredth, and what the check looks for is there too."""
    healthy = two_branches()
    assert healthy.step is not None
    step = healthy.step

    def off(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, cache = step(module, x, cache)
        return output * 1.01, cache

    faulty = replace(healthy, step=off)
    assert examined(faulty, "DEC101").findings
    assert not registry.entries()["DEC101"].manual.code.startswith(registry.entries()[code].blocked_by)
    assert not examined(faulty, code).findings
    assert examined(registry.load(code).planted(faulty), code).findings


def test_a_path_leads_through_structures_of_every_make() -> None:
    class Slotted:
        __slots__ = ("inner",)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

    tensor = torch.arange(6.0)
    structure = {"a": [Slotted(states.Kept(tensor, {"b": 3}))], "again": tensor}
    found = fields_of(structure, "cache")
    assert set(found) == {"cache['a'][0].inner.tail", "cache['a'][0].inner.sums['b']"}
    put(structure, found["cache['a'][0].inner.tail"].keys, torch.zeros(6))
    assert not structure["again"].any()
    put(structure, found["cache['a'][0].inner.sums['b']"].keys, 4)
    assert fields_of(structure, "cache")["cache['a'][0].inner.sums['b']"].value == 4


def _field(tensor: Tensor) -> Field:
    return Field("k", (), tensor)


def test_fields_of_an_odd_width_are_compared() -> None:
    one, two = torch.rand(2, 3, 5), torch.rand(2, 3, 5)
    found = difference("maps", _field(one), _field(two), 1)
    assert found is not None
    assert "rotations" not in found.kind


@pytest.mark.parametrize("keeps", ["front", "back"])
def test_room_for_more_is_no_difference(keeps: str) -> None:
    tensor = torch.randn(1, 9, 4)
    shorter = tensor[:, :6] if keeps == "front" else tensor[:, 3:]
    assert difference("k", _field(tensor), _field(shorter), 1) is None


def test_pairs_of_neighbours_are_seen_to_be_rotated() -> None:
    tensor = torch.randn(1, 9, 4, dtype=torch.float64)
    turned = torch.view_as_complex(tensor.unflatten(-1, (2, 2))) * torch.polar(torch.ones(2), torch.tensor([3.0, 0.3]))
    found = difference("k", _field(tensor), _field(torch.view_as_real(turned).flatten(-2).double()), 1)
    assert found is not None
    assert "pairs of neighbours have equal norms), the second turned as for 3 positions later" in found.text


def test_numbers_in_tensors_without_dimensions_are_compared() -> None:
    found = difference("k", _field(torch.tensor(2.0)), _field(torch.tensor(3.0)), None)
    assert found is not None
    assert found.kind == "the second values are 1.5 times the first"
