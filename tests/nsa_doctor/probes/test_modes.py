"""A module is switched as its user does: what its own `eval` raises is a finding, what it returns is not asked for."""

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core.measurement import Point
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.measure import measure
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest

WIDTH = 8


class Merging(nn.Linear):
    """Adds a part of its own to its weights in evaluation, as adapters do, and returns nothing."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.added, self.is_merged = nn.Parameter(torch.ones(WIDTH, WIDTH)), False

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        if self.is_merged == mode:
            self.weight.data += -self.added.data if mode else self.added.data
            self.is_merged = not mode

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0 if self.is_merged else x @ self.added.T)


class Raises(nn.Linear):
    def eval(self) -> "Raises":
        raise RuntimeError("no evaluation")  # here


def subject_of(make: type[nn.Module], *sizes: int) -> Subject:
    request = SubjectRequest(spec="tests:module", input="embeddings", width=WIDTH, lengths=(16,))
    return adapt(request, lambda: make(*sizes))


def test_weights_that_are_merged_are_those_that_training_has():
    subject = subject_of(Merging)
    modules = [built(subject, mode=mode) for mode in ("train", "eval")]
    first, second = (sp(sp.input(5)) for sp in modules)
    assert modules[1].module.is_merged
    torch.testing.assert_close(first, second)


def test_what_eval_raises_is_found_in_it():
    subject = subject_of(Raises, WIDTH, WIDTH)
    trouble = measure(subject, Point(length=5, mode="eval"), Conditions()).trouble
    assert trouble is not None
    assert (trouble.phase, trouble.place.function) == ("eval", "eval")
    assert measure(subject, Point(length=5, mode="train"), Conditions()).trouble is None
