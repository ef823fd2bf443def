"""Functions for sampling that keep other tokens than they say are found at their line, and sound ones never."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.language.kept_tokens import other_tokens
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import faulty_samplers, sound_samplers, sound_samplers_alone
from tests.nsa_doctor.small_subjects import small_subject

UNEXAMINED = ("OfExperts", "Noisy", "Typical", "Activated")


def classes_of(module: object) -> list[type[nn.Module]]:
    """Those that it defines, but for what they have in common."""
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, nn.Module)]
    return [each for each in found if each is not sound_samplers.Base]


def examined(make: type[nn.Module], *packages: str) -> Result:
    """The check of one module."""
    return run_check(registry.load("DEC117"), small_subject(make, width=8, packages=packages))


@pytest.mark.parametrize("kind", classes_of(faulty_samplers), ids=lambda kind: kind.__name__)
def test_other_tokens_are_found_where_it_is_decided(kind: type[nn.Module]) -> None:
    lines, first = inspect.getsourcelines(kind)
    due = first + next(number for number, line in enumerate(lines) if "# here" in line)
    result = examined(kind)
    assert [(each.where.line, each.where.module_class) for each in result.findings] == [(due, kind.__name__)]


@pytest.mark.parametrize(
    "kind", [*classes_of(sound_samplers), *classes_of(sound_samplers_alone)], ids=lambda kind: kind.__name__
)
def test_what_keeps_as_it_says_is_left_alone(kind: type[nn.Module]) -> None:
    result = examined(kind)
    assert result.findings == ()
    assert result.verdict is (Verdict.SKIP if kind.__name__ in UNEXAMINED else Verdict.PASS)


class Counting(sound_samplers.Base):
    """Keeps count of its calls, and draws."""

    calls = 0

    def sample(self, logits: Tensor, top_k: int) -> Tensor:
        self.calls += 1
        self.layer.weight.data.zero_()
        return places_of(logits, top_k).gather(-1, torch.randint(top_k, (len(logits), 1)))


class Asking(sound_samplers.Base):
    """Cannot be called without what nobody knows."""

    def top_k(self, logits: Tensor, k: int, table: Tensor) -> Tensor:
        return logits + table

    def top_p(self, logits: Tensor, p: float, /) -> Tensor:
        return logits

    def top_p_of_all(self, logits: Tensor, p: float) -> Tensor:
        return logits.sum() * p


def places_of(logits: Tensor, count: int) -> Tensor:
    """The most likely ones of each row."""
    return logits.topk(count, -1).indices


def test_a_module_and_chance_are_as_before() -> None:
    module = Counting()
    weight, state = module.layer.weight.clone(), torch.get_rng_state()
    assert other_tokens(module, (), 0) == ([], 1)
    assert module.calls == 0
    assert torch.equal(module.layer.weight, weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_called_or_read_is_not_examined() -> None:
    assert other_tokens(Asking(), (), 0) == ([], 0)
