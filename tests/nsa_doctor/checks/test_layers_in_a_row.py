"""Linear layers with nothing between them, and a list of layers that are one, are found; what is meant is silent."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 16


class FeedForward(nn.Module):
    """Two maps, and what is done to what the first gives."""

    def __init__(self, between: Callable[[Tensor], Tensor], wide: int = 4 * DIM) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(DIM, wide), nn.Linear(wide, DIM), nn.Dropout(0.1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.between(self.up(x)))
        return x + self.down(y)


class Twice(FeedForward):
    """What the first map gives is read by more than the second."""

    def __init__(self) -> None:
        super().__init__(lambda y: y)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(y) + y[..., :DIM].tanh()


class Detached(FeedForward):
    """A gate is made of what the first map gives, outside the graph."""

    def __init__(self) -> None:
        super().__init__(lambda y: y)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return x + self.down(y) * (y.detach() > 0).any(-1, keepdim=True)


class Kept(FeedForward):
    """What the first map gives is kept for others."""

    def __init__(self) -> None:
        super().__init__(lambda y: y)

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.up(x)
        return x + self.down(self.features)


class OfLong(FeedForward):
    """Attention lies between the two where there are many tokens."""

    def __init__(self) -> None:
        super().__init__(lambda y: y.cumsum(1) if y.shape[1] > 32 else y)


def in_place(y: Tensor) -> Tensor:
    return F.relu(y, inplace=True)


def same(y: Tensor) -> Tensor:
    return y


def examined(code: str, make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda m, x: m(x),
        input="embeddings",
        width=DIM,
        max_length=64,
        packages=("tests",),
    )
    return run_check(registry.load(code), subject)


def test_two_maps_with_nothing_but_dropout_between_them_are_found() -> None:
    (finding,) = examined("FWD236", lambda: nn.Sequential(FeedForward(same), FeedForward(same))).findings
    assert finding.message == (
        "0.up widens 16 channels to 64, and 0.down is given these as they are, for 16: the two are one map of 16 "
        "channels; 1 more pair so"
    )
    assert (finding.where.module, finding.where.function) == ("0.down", "forward")
    assert finding.where.line == FeedForward.forward.__code__.co_firstlineno + 2


def stack(*widths: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(before, behind) for before, behind in itertools.pairwise(widths)))


def test_three_maps_in_a_row_that_are_no_bottleneck_are_one() -> None:
    rows = lambda: nn.Sequential(stack(DIM, DIM, DIM, DIM), nn.Tanh(), stack(DIM, DIM))  # noqa: E731
    (finding,) = examined("FWD236", rows).findings
    assert finding.message == (
        "3 linear layers, 0.0 to 0.2, are each given what the one before makes, as it is: they are one map of 16 "
        "channels"
    )
    assert finding.where.module == "0.2"


class WithActivation(nn.Linear):
    """A layer with its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x))


class Shared(nn.Module):
    """Of two layers in turn the second is used once more, behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.gelu(self.b(self.a(x)))))


class InTurn(Shared):
    """The same two layers twice, with nothing in between."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.b(self.a(x))
        return F.gelu(self.c(x))


def hooked() -> nn.Module:
    layers = stack(DIM, DIM, DIM, DIM)
    for each in layers:
        each.register_forward_hook(lambda _layer, _given, answer: F.gelu(answer))
    return layers


def test_two_layers_that_are_used_in_turn_are_in_a_row() -> None:
    (finding,) = examined("FWD236", InTurn).findings
    assert finding.message.startswith("5 linear layers, a to c, are each given what the one before makes")


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeedForward(F.gelu),
        lambda: FeedForward(in_place),
        lambda: FeedForward(lambda y: y.mT.contiguous().mT),
        lambda: FeedForward(same, wide=DIM // 4),
        Twice,
        Detached,
        Kept,
        OfLong,
        lambda: nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, 4 * DIM), nn.Tanh(), nn.Linear(4 * DIM, DIM)),
        lambda: nn.TransformerEncoderLayer(DIM, 2, 4 * DIM, 0.0, batch_first=True),
        lambda: stack(DIM, DIM, DIM),
        lambda: stack(DIM, 4, 4, DIM),
        lambda: nn.Sequential(*(WithActivation(DIM, DIM) for _ in range(3))),
        Shared,
        hooked,
    ],
    ids=[
        *("gelu", "in place", "copied", "narrow", "read twice", "detached", "kept", "of long", "as wide", "of torch"),
        *("two alike", "narrow in between", "with activations", "shared", "hooked"),
    ],
)
def test_an_activation_another_reader_or_a_narrow_middle_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined("FWD236", make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class Stack(nn.Module):
    """Layers that are one by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM)] * 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


class UniversalTransformer(Stack):
    """Its name says it."""


class Said(Stack):
    """Layers whose parameters are shared."""


class SaidInChinese(Stack):
    """参数共享."""


class Activated(nn.Sequential):
    """An activation with a parameter, twice."""

    def __init__(self) -> None:
        act = nn.PReLU()
        super().__init__(nn.Linear(DIM, DIM), act, nn.Linear(DIM, DIM), act)


def made_by_a_function() -> nn.Module:
    layer = nn.Linear(DIM, DIM)
    return nn.Sequential(layer, layer)


class Own(Stack):
    """A layer for each, and an activation that stands twice."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.Tanh()
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM), act, nn.Linear(DIM, DIM), act])


def test_a_list_of_one_layer_is_found_where_it_is_made() -> None:
    (finding,) = examined("FWD237", Stack).findings
    assert finding.message == "Linear stands 3 times in layers: one and the same module"
    assert finding.where.line == Stack.__init__.__code__.co_firstlineno + 2


class TwiceNormed(Stack):
    """Two layers, each with a norm behind it that is the other's."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(DIM)
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM), norm, nn.Linear(DIM, DIM), norm])


class TwiceNormedByRow(Stack):
    """A norm that keeps nothing may stand wherever it is wanted."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.InstanceNorm1d(DIM)
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM), norm, nn.Linear(DIM, DIM), norm])


def test_a_norm_of_batches_that_stands_twice_is_found() -> None:
    (finding,) = examined("FWD237", TwiceNormed).findings
    assert finding.message.startswith("BatchNorm1d stands 2 times in layers: one and the same module, whose running")


class LeftOut(nn.Module):
    """A list whose parts are all left out, as of layers that may have a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gates = nn.Linear(DIM, DIM), nn.ModuleList([None, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize("make", [UniversalTransformer, Said, SaidInChinese, Activated, Own, TwiceNormedByRow, LeftOut])
def test_layers_that_are_shared_on_purpose_or_stand_once_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined("FWD237", make).findings == ()


def test_what_a_function_makes_of_one_layer_is_a_note() -> None:
    result = examined("FWD237", made_by_a_function)
    assert (result.findings, len(result.notes)) == ((), 1)


class OverLevels(nn.Module):
    """One head, which reads several levels."""

    def __init__(self) -> None:
        super().__init__()
        head = nn.Linear(DIM, DIM)
        self.layers, self.heads = nn.ModuleList([nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)]), nn.ModuleList([head] * 2)

    def forward(self, x: Tensor) -> Tensor:
        answers = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x).tanh()
            answers.append(head(x))
        return torch.stack(answers).sum(0)


class OverOne(OverLevels):
    """Heads that all read the same."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x) for head in self.heads]).sum(0)


class InAChain(OverLevels):
    """Each reads what the one before gives."""

    def forward(self, x: Tensor) -> Tensor:
        for head in self.heads:
            x = x + head(F.layer_norm(x, (DIM,)))
        return x


def test_one_head_with_another_input_in_each_place_is_a_note() -> None:
    result = examined("FWD237", OverLevels)
    assert (result.findings, len(result.notes)) == ((), 1)


@pytest.mark.parametrize("make", [OverOne, InAChain])
def test_heads_that_read_the_same_or_each_other_are_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined("FWD237", make).findings
    assert finding.message.startswith("Linear stands 2 times in heads")


class Chosen(Stack):
    """One layer or several, by how many are asked for."""

    def __init__(self, num_own: int = 1) -> None:
        super().__init__()
        if num_own == 1:
            self.layers = nn.ModuleList([nn.Linear(DIM, DIM)] * 3)
        else:
            self.layers = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(num_own)])


def several(layer: nn.Linear, is_one: bool) -> nn.ModuleList:
    if is_one:
        return nn.ModuleList([layer] * 3)
    return nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(3)])


class ChosenByAFunction(Stack):
    """A function that makes one layer or several."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = several(nn.Linear(DIM, DIM), is_one=True)


class Guarded(Stack):
    """The other branch makes one layer."""

    def __init__(self, num: int = 3) -> None:
        super().__init__()
        if num > 1:
            self.layers = nn.ModuleList([nn.Linear(DIM, DIM)] * num)
        else:
            self.layers = nn.ModuleList([nn.Linear(DIM, DIM)])


@pytest.mark.parametrize("make", [Chosen, ChosenByAFunction])
def test_one_layer_by_choice_where_another_branch_builds_each_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined("FWD237", make)
    assert (result.findings, result.notes) == ((), ())


def test_one_layer_beside_a_branch_of_a_single_one_is_found() -> None:
    assert len(examined("FWD237", Guarded).findings) == 1
