"""A module is put back as it was, whatever it keeps and wherever; then two runs of a healthy one agree."""

import copy
import random
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.numerics.steptrace import trace
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.remembering import HEALTHY
from tests.nsa_doctor.conftest import HERE


class _Own:
    """An object of the subject's own."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class _Holder(nn.Module):
    """Holds one thing."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


def _clear(held: Any) -> None:
    held.clear()


def _add_one(held: Tensor) -> None:
    held.add_(1)


CHANGES: dict[str, tuple[Any, Callable[[Any], object], Callable[[Any], object]]] = {
    # what is held, how it changes in place, and what is looked at
    "a tensor": (torch.zeros(3), _add_one, Tensor.tolist),
    "NaN": (torch.full((3,), torch.nan), lambda held: held.zero_(), lambda held: str(held.tolist())),
    "an expanded tensor": (torch.zeros(1).expand(3), lambda held: held[:1].add_(1), Tensor.tolist),
    "a dict of tensors": ({4: torch.zeros(3)}, lambda held: held.update({8: torch.ones(3)}), list),
    "tensors in a dict": ({4: torch.zeros(3)}, lambda held: held[4].add_(1), lambda held: held[4].tolist()),
    "a deep list": ([[(torch.zeros(2), [1])]], lambda held: held[0][0][1].append(2), lambda held: held[0][0][1][:]),
    "a list": ([1, 2], lambda held: held.reverse(), list),
    "a set": ({1, 2}, lambda held: held.remove(1), sorted),
    "a queue": (deque([1, 2], maxlen=2), lambda held: held.append(3), list),
    "an ordered dict": (OrderedDict(a=1, b=2), lambda held: held.move_to_end("a"), list),
    "a dict with defaults": (defaultdict(list), lambda held: held["a"].append(1), dict),
    "a namespace": (SimpleNamespace(length=1), lambda held: setattr(held, "length", 2), lambda held: held.length),
    "slots": (_Own(), lambda held: setattr(held, "count", 5), lambda held: held.count),
    "a generator": (
        torch.Generator(),
        lambda held: torch.randn(2, generator=held),
        lambda held: held.get_state().sum(),
    ),
    "a generator of Python": (random.Random(1), lambda held: held.random(), lambda held: held.getstate()),
    "an array": (numpy.zeros(3), lambda held: held.fill(1), lambda held: held.tolist()),
    "a generator of arrays": (
        numpy.random.default_rng(1),
        lambda held: held.random(),
        lambda held: held.bit_generator.state["state"],
    ),
}


@pytest.mark.parametrize(("held", "change", "seen"), CHANGES.values(), ids=CHANGES)
def test_what_an_attribute_leads_to_is_as_it_was_and_the_same_object(
    held: Any, change: Callable[[Any], object], seen: Callable[[Any], object]
) -> None:
    module = nn.Sequential(_Holder(held))
    before = seen(held)
    state = ModuleState(module)
    for _ in range(2):  # as often as asked for
        change(held)
        assert seen(held) != before
        module[0].held = None
        state.restore()
        assert module[0].held is held
        assert seen(held) == before


def test_plain_attributes_come_back_appear_and_go() -> None:
    module = _Holder(4)
    state = ModuleState(module)
    module.held, module.added, module.training = 8, "new", False
    state.restore()
    assert (module.held, hasattr(module, "added"), module.training) == (4, False, True)


def test_a_buffer_is_the_same_tensor_of_the_same_shape_again() -> None:
    module = nn.Module()
    module.register_buffer("grown", torch.zeros(2))
    module.register_buffer("replaced", torch.zeros(2))
    module.register_buffer("none", None)
    grown, replaced = module.grown, module.replaced
    state = ModuleState(module)
    module.grown.resize_(5).fill_(3.0)
    module.replaced = torch.ones(7)
    module.none = torch.ones(1)
    state.restore()
    assert (module.grown is grown, module.replaced is replaced, module.none) == (True, True, None)
    assert (grown.tolist(), replaced.tolist()) == ([0.0, 0.0], [0.0, 0.0])


def test_data_that_was_replaced_by_another_shape_and_dtype_is_back() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.arange(6.0).view(2, 3).T)
    state = ModuleState(module)
    module.table.data = torch.ones(9, dtype=torch.float64)
    state.restore()
    assert module.table.dtype == torch.float32
    assert module.table.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_what_two_modules_share_they_go_on_sharing() -> None:
    cache: dict[str, Tensor] = {"k": torch.zeros(2)}
    module = nn.Sequential(_Holder(cache), _Holder(cache))
    state = ModuleState(module)
    module[0].held = {}
    cache["k"].add_(1)
    state.restore()
    assert module[0].held is module[1].held is cache
    assert cache["k"].tolist() == [0.0, 0.0]


def test_a_view_shows_the_memory_of_its_buffer_still() -> None:
    module = _Holder(None)
    module.register_buffer("store", torch.zeros(4))
    module.held = module.store[1:3]
    state = ModuleState(module)
    module.store.add_(1)
    state.restore()
    module.store[1] = 7
    assert module.held.tolist() == [7.0, 0.0]


def test_what_cannot_be_copied_stays_by_reference() -> None:
    lock, sentinel = threading.Lock(), object()
    with open(__file__, encoding="utf-8") as file:
        held = [lock, file, sentinel, len, lambda: None, threading, iter(())]
        module = _Holder(held)
        kept = list(held)
        state = ModuleState(module)
        held.clear()
        state.restore()
    assert all(one is other for one, other in zip(held, kept, strict=True))


def test_circles_end() -> None:
    circle: list[Any] = []
    circle.append({"itself": circle, "number": 1})
    module = _Holder(circle)
    circle.append(module)
    state = ModuleState(module)
    circle[0]["number"] = 2
    state.restore()
    assert circle[0]["number"] == 1


def test_submodules_and_hooks_that_a_pass_adds_are_gone() -> None:
    module = _Holder(None)
    state = ModuleState(module)
    module.added = nn.Linear(2, 2)
    handle = module.register_forward_hook(lambda *_: None)
    state.restore()
    assert list(module.children()) == []
    assert len(module._forward_hooks) == 0
    handle.remove()


def test_a_lazy_module_keeps_the_shape_of_its_first_pass() -> None:
    module = nn.Sequential(nn.LazyLinear(3))
    state = ModuleState(module)
    module(torch.zeros(1, 2))
    state.restore()
    assert module(torch.zeros(1, 2)).shape == (1, 3)


def test_parameters_are_copied_only_when_asked_for() -> None:
    module = nn.Linear(2, 2)
    module.weight.grad = torch.ones(2, 2)
    own = module.weight.tolist()
    without, with_them = ModuleState(module), ModuleState(module, with_parameters=True)
    with torch.no_grad():
        module.weight.add_(1)
        module.weight.grad.add_(1)
    moved = module.weight.tolist()
    without.restore()
    assert module.weight.tolist() == moved
    with_them.restore()
    assert (module.weight.tolist(), module.weight.grad.tolist()) == (own, [[1.0, 1.0]] * 2)


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Verdict]:
    monkeypatch.syspath_prepend(HERE)

    def of(code: str, name: str) -> Verdict:
        subject = load_subject(SubjectRequest(spec=f"faulty.remembering:{name}", lengths=(16,)))
        result = run_check(registry.load(code), subject)
        assert result.verdict is not Verdict.CRASH, result.reason
        return result.verdict

    return of


@pytest.mark.parametrize("code", ["FWD206", "GRD101", "GRD102"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_module_that_remembers_passes(name: str, code: str, verdict: Callable[[str, str], Verdict]) -> None:
    assert verdict(code, name) is Verdict.PASS


def test_a_module_that_differs_from_run_to_run_is_found(verdict: Callable[[str, str], Verdict]) -> None:
    assert verdict("FWD206", "clocked") is Verdict.FAIL
    assert verdict("GRD101", "clocked") is Verdict.SKIP


@pytest.mark.parametrize("name", HEALTHY)
def test_a_step_computed_again_leaves_what_a_module_keeps(name: str) -> None:
    module = HEALTHY[name]()
    scale = nn.Parameter(torch.ones(1))
    module.scale_of_input = scale

    def loss() -> Tensor:
        return module(scale * torch.ones(1, 8, 16)).sum() * torch.tensor(float("nan"))

    before = {key: repr(value) for key, value in vars(module).items()}
    assert trace(module, loss)
    assert {key: repr(value) for key, value in vars(module).items()} == before


def test_a_module_that_keeps_a_loss_with_its_history_is_copied() -> None:
    class KeepsItsLoss(nn.Linear):
        loss: Tensor

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            self.loss = y.square().mean()
            return y

    module = KeepsItsLoss(4, 4)
    module(torch.ones(2, 4))
    with pytest.raises(RuntimeError):
        copy.deepcopy(module)
    copied = cast("KeepsItsLoss", copied_module(module))
    assert torch.equal(copied.loss, module.loss)
    assert copied.loss.grad_fn is None
    assert copied.weight is not module.weight
