"""Copies, new weights, later calls and inputs that look alike give what a module built for them gives."""

import copy
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

CODES = ("FWD220", "FWD221", "FWD222", "FWD223")


class Layer(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)


class DrawsTable(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(8), persistent=False)

    def forward(self, x):
        return super().forward(x) * self.table


class DrawsNumber(Layer):
    def __init__(self):
        super().__init__()
        self.scale = float(torch.rand(()))

    def forward(self, x):
        return super().forward(x) * (1 + self.scale)


class SharesWithCopies(Layer):
    def __deepcopy__(self, memo):
        copied = SharesWithCopies()
        copied.__dict__ = dict(self.__dict__)
        return copied


class ForgetsInPickles(Layer):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "factor"}

    def __deepcopy__(self, memo):
        copied = ForgetsInPickles().to(self.weight.dtype).train(self.training)
        copied.load_state_dict(self.state_dict())
        return copied

    def forward(self, x):
        return super().forward(x) * self.factor


class KeepsWeight(Layer):
    kept = None

    def forward(self, x):
        if torch.is_grad_enabled():
            return super().forward(x)
        if self.kept is None:
            self.kept = self.weight.detach().clone()
        return nn.functional.linear(x, self.kept, self.bias)


def forgets_the_bias(module, _keys):
    module.bias.data.zero_()


class LosesWhatIsLoaded(Layer):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(forgets_the_bias)


class ReturnsItsSpace(Layer):
    def forward(self, x):
        y = super().forward(x)
        if torch.is_grad_enabled():
            return y
        space = vars(self).setdefault("space", OrderedDict())
        return space.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)


class HandsOutItsMemo(Layer):
    def forward(self, x):
        memo = vars(self).setdefault("memo", [])
        for given, y in memo:
            if not torch.is_grad_enabled() and given.shape == x.shape and torch.equal(given, x):
                return y
        memo.append((x.clone(), super().forward(x)))
        return memo[-1][1]


class KnowsInputsBySum(Layer):
    def forward(self, x):
        memo = vars(self).setdefault("memo", {})
        key = x.shape, torch.is_grad_enabled(), round(float(x.sum()), 3)
        return memo.setdefault(key, super().forward(x)).clone()


class KnowsInputsByObject(Layer):
    def forward(self, x):
        memo = vars(self).setdefault("memo", {})
        return memo.setdefault((id(x), x.shape, torch.is_grad_enabled()), super().forward(x)).clone()


FAULTS = {
    "a buffer that is drawn and not saved": (DrawsTable, "FWD220", "table (a buffer with persistent=False)"),
    "a number that is drawn and not saved": (DrawsNumber, "FWD220", "scale (a number)"),
    "weights that copies share": (SharesWithCopies, "FWD220", "its deepcopy"),
    "a value that pickles leave out": (ForgetsInPickles, "FWD220", "a copy by pickle"),
    "a hook that changes what is loaded": (LosesWhatIsLoaded, "FWD220", "state_dict()"),
    "a weight that is kept": (KeepsWeight, "FWD221", "after an optimizer step"),
    "memory that is used again": (ReturnsItsSpace, "FWD222", "overwritten by copy_"),
    "an output that is kept": (HandsOutItsMemo, "FWD222", "written into an output"),
    "inputs known by a sum": (KnowsInputsBySum, "FWD223", "in reverse order"),
    "inputs known by their object": (KnowsInputsByObject, "FWD223", "in the same tensor"),
}


def examined(make, code: str) -> Result:
    made = Subject(name="tests", build=lambda seed: make(), forward=lambda m, x: m(x), input="embeddings", width=8)
    return run_check(registry.load(code), replace(made, packages=("tests",), max_length=128))


@pytest.mark.parametrize("name", FAULTS)
def test_what_differs_is_found(name: str) -> None:
    make, code, words = FAULTS[name]
    (finding,) = examined(make, code).findings
    assert words in finding.message
    assert finding.where.module_class == make.__name__
    assert finding.where.file == __file__ or name == "a hook that changes what is loaded"


class Copied(Layer):
    """A linear layer that does something else once it was copied."""

    was_copied = False

    def __init__(self, effect):
        super().__init__()
        self.effect = effect

    def __setstate__(self, state):
        super().__setstate__(state)
        self.was_copied = True

    def forward(self, x):
        y = super().forward(x)
        return self.effect(y) if self.was_copied else y


def cuts_the_graph(y):
    return torch.cat((y[:, :-1].detach(), y[:, -1:]), dim=1)


def cuts_all(y):
    return y.detach() + 0 * y


def refuses(y):
    raise ValueError("a copy")


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (cuts_the_graph, "copy.deepcopy gives other gradients"),
        (cuts_all, "copy.deepcopy gives other gradients"),
        (refuses, "copy.deepcopy: in forward it raises ValueError: a copy at S=19"),
        (lambda y: y[:, 1:], "copy.deepcopy: in forward it gives an output of another shape: forward returned"),
    ],
)
def test_a_copy_that_goes_wrong_is_found(effect, words: str) -> None:
    (finding,) = examined(lambda: nn.Sequential(Copied(effect), Layer()), "FWD220").findings
    assert words in finding.message
    assert finding.where.file == __file__


class DrawsItsGradient(Layer):
    def forward(self, x):
        y = super().forward(x)
        factor = float(torch.rand(()))
        return y.detach() + factor * (y - y.detach())


def test_gradients_that_differ_each_time_are_not_compared_with_those_of_a_copy() -> None:
    assert examined(DrawsItsGradient, "FWD220").verdict is Verdict.PASS


class KeepsWeightByVersion(Layer):
    kept = None

    def forward(self, x):
        if torch.is_grad_enabled():
            return super().forward(x)
        if self.kept is None or self.kept[0] != (self.weight._version, self.weight.dtype):
            self.kept = (self.weight._version, self.weight.dtype), self.weight.detach().clone()
        return nn.functional.linear(x, self.kept[1], self.bias)


class FoldsInEval(Layer):
    """Weights that are set in eval() count after train() and eval(): it says so with methods of its own."""

    folded = None

    def train(self, mode=True):
        self.folded = None
        return super().train(mode)

    def forward(self, x):
        if self.training or torch.is_grad_enabled():
            return super().forward(x)
        if self.folded is None:
            self.folded = copy.deepcopy(self.weight.detach())
        return nn.functional.linear(x, self.folded.to(x.dtype), self.bias)


class SeedsItself(Layer):
    """A constant that every instance draws alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.register_buffer("table", torch.rand(8), persistent=False)

    def forward(self, x):
        return super().forward(x) * self.table


class GrowsTable(Layer):
    table = None

    def forward(self, x):
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype).cos()[:, None]
        return super().forward(x) * self.table[: x.shape[1]]


HEALTHY = {
    "normalised by batches": lambda: nn.Sequential(Layer(), nn.LayerNorm(8), nn.Dropout(0.5)),
    "kept by version": KeepsWeightByVersion,
    "folds in eval()": FoldsInEval,
    "seeds itself": SeedsItself,
    "a table that grows": GrowsTable,
    "the identity": nn.Identity,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(Layer()),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("code", CODES)
def test_a_healthy_module_is_silent(name: str, code: str) -> None:
    result = examined(HEALTHY[name], code)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class StepsInItsSpace(Layer):
    """Decodes, each step's output in a buffer of its own where it `shares`."""

    def __init__(self, shares=True):
        super().__init__()
        self.shares = shares

    def prefill(self, x):
        return self(x), x[:, -1:]

    def step(self, x, cache):
        y = self(x)
        if not self.shares:
            return y, x
        spaces = vars(self).setdefault("spaces", {})
        return spaces.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y), x


@pytest.mark.parametrize("shares", [True, False])
def test_a_step_that_writes_over_the_output_of_the_one_before_is_found(shares: bool) -> None:
    made = Subject(
        name="tests",
        build=lambda seed: StepsInItsSpace(shares),
        forward=lambda m, x: m(x),
        input="embeddings",
        width=8,
        prefill=lambda m, x: m.prefill(x),
        step=lambda m, x, cache: m.step(x, cache),
    )
    findings = run_check(registry.load("FWD222"), replace(made, packages=("tests",), max_length=128)).findings
    assert [finding.message for finding in findings] == [
        "the output of a step is overwritten by copy_ in the next step"
    ] * shares
    assert all(finding.where.function == "step" for finding in findings)
