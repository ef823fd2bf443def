"""Chosen initial values that a line for all parameters writes over (GRD232)."""

import copy
import inspect
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

GRD232 = registry.load("GRD232")
Choice = Callable[["Part"], None]


class Part(nn.Module):
    """A gated part whose start is chosen by what it is given."""

    def __init__(self, choose: Choice = lambda part: None) -> None:
        super().__init__()
        self.gate, self.out, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.places = nn.Parameter(torch.zeros(32, 8))
        self.slope = nn.Parameter(torch.full((8,), -2.0))
        choose(self)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places[: x.shape[1]] if x.shape[1] <= 32 else 0.0
        return x + self.out(torch.sigmoid(self.gate(self.norm(x + places))) * self.slope)


def begin(module: nn.Module) -> None:
    """What is done to every layer."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)


def everything(module: nn.Module) -> None:
    """One distribution for every parameter."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)


class Model(nn.Module):
    """Three parts, of which the first is chosen for, and what is done to all."""

    def __init__(
        self,
        choose: Choice = lambda part: None,
        before: Choice = lambda part: None,
        general: Callable[[nn.Module], object] = lambda model: model.apply(begin),
        after: Choice = lambda part: None,
    ) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = Part(choose), Part(), Part(), nn.LayerNorm(8)
        before(self.first)
        general(self)
        after(self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.third(self.second(self.first(x))))


def open_gate(part: Part) -> None:
    nn.init.constant_(part.gate.bias, 2.0)


def starts_at_nothing(part: Part) -> None:
    nn.init.zeros_(part.out.weight)


def norm_starts_at_nothing(part: Part) -> None:
    part.norm.weight.data.fill_(0)


def remembers(part: Part) -> None:
    part.gate.bias.data.copy_(torch.arange(8) < 4)


def sines(part: Part) -> None:
    angles = torch.arange(32)[:, None] / 100 ** (torch.arange(8) / 8)
    part.places.data.copy_(angles.sin())


def identity(part: Part) -> None:
    nn.init.eye_(part.out.weight)


def drawn(part: Part) -> None:
    nn.init.xavier_uniform_(part.out.weight)


def usual(part: Part) -> None:
    nn.init.zeros_(part.out.bias)
    nn.init.ones_(part.norm.weight)


def of_one_name(model: Model) -> None:
    for part in (model.first, model.second, model.third):
        nn.init.normal_(part.out.weight, std=0.02)


def leaves_out_what_is_marked(model: Model) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear) and not getattr(part, "is_ready", False):
            begin(part)


def marked(part: Part) -> None:
    starts_at_nothing(part)
    part.out.is_ready = True  # type: ignore[assignment]


def normal_init(module: nn.Linear, bias: float) -> None:
    nn.init.normal_(module.weight, std=0.02)
    nn.init.constant_(module.bias, bias)


class ByItsOwnHelper(Model):
    """Each layer that it means is named where a helper is called."""

    def __init__(self) -> None:
        super().__init__(open_gate, general=len_of)
        normal_init(self.first.gate, bias=-1.0)
        normal_init(self.first.out, bias=0.0)
        normal_init(self.second.gate, bias=0.0)
        normal_init(self.second.out, bias=0.0)


class ByATable(Model):
    """Each parameter that it means is named in a table."""

    def __init__(self) -> None:
        super().__init__(open_gate, general=len_of)
        for parameter, value in (
            (self.first.gate.bias, -1.0),
            (self.first.out.bias, 0.0),
            (self.second.gate.bias, -1.0),
            (self.second.out.bias, 0.0),
        ):
            nn.init.constant_(parameter, value)


def scales_down(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 0.5)


def seeded_choice(part: Part) -> None:
    torch.manual_seed(0)
    nn.init.xavier_uniform_(part.out.weight)


def closes_gate(part: Part) -> None:
    nn.init.constant_(part.gate.bias, -1.0)


def as_torch_begins(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.LayerNorm)):
            part.reset_parameters()


def made_of_zeros(part: Part) -> None:
    part.places = nn.Parameter(torch.empty(32, 8).zero_())


def of_a_number(part: Part, bias: float = 2.0) -> None:
    nn.init.constant_(part.gate.bias, bias)


def of_complex_numbers(part: Part) -> None:
    part.angles = nn.Parameter(torch.full((4,), 0.1 + 2j))
    part.angles.data.fill_(1j)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(GRD232, small_subject(make, width=8))


@pytest.mark.parametrize(
    ("choose", "general", "said"),
    [
        (open_gate, None, "first.gate.bias is given 2 throughout"),
        (starts_at_nothing, None, "first.out.weight is given 0 throughout"),
        (norm_starts_at_nothing, None, "first.norm.weight is given 0 throughout"),
        (remembers, None, "first.gate.bias is given values from 0 to 1"),
        (identity, None, "first.out.weight is given values from 0 to 1"),
        (of_a_number, None, "first.gate.bias is given 2 throughout"),
        (open_gate, as_torch_begins, "first.gate.bias is given 2 throughout"),
        (sines, everything, "first.places is given values from -1 to 1"),
    ],
)
def test_what_is_chosen_in_a_part_and_done_to_all_behind_it_is_found(
    choose: Choice, general: Callable[[nn.Module], object] | None, said: str
) -> None:
    given = {} if general is None else {"general": general}
    findings = examined(partial(Model, choose, **given)).findings
    found = next(each for each in findings if each.message.startswith(said))
    assert "what was chosen for this one never counts" in found.message
    assert found.where.function == ("begin" if general is None else general.__name__)
    assert found.where.file == __file__


def test_what_a_constructor_makes_of_a_number_is_found() -> None:
    (found,) = examined(partial(Model, general=everything)).findings
    assert found.message.startswith("first.slope is given -2 throughout")


def test_of_two_lines_of_one_function_the_earlier_is_named() -> None:
    (found,) = examined(partial(Model, before=open_gate)).findings
    lines, first = inspect.getsourcelines(Model)
    assert found.where.line == first + next(at for at, line in enumerate(lines) if "before(self.first)" in line)
    assert found.where.function == "__init__"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Model, id="nothing chosen"),
        pytest.param(partial(Model, after=open_gate), id="chosen last"),
        pytest.param(partial(Model, open_gate, after=open_gate), id="chosen again"),
        pytest.param(partial(Model, drawn), id="drawn"),
        pytest.param(partial(Model, open_gate, after=closes_gate), id="chosen otherwise behind it"),
        pytest.param(ByItsOwnHelper, id="a helper is called by name"),
        pytest.param(ByATable, id="a table of names"),
        pytest.param(partial(Model, open_gate, general=scales_down), id="made of what was there"),
        pytest.param(partial(Model, seeded_choice), id="drawn behind a seed of its own"),
        pytest.param(partial(Model, made_of_zeros), id="a placeholder of zeros"),
        pytest.param(partial(Model, of_complex_numbers), id="complex numbers"),
        pytest.param(partial(Model, usual), id="as it is everywhere"),
        pytest.param(partial(Model, starts_at_nothing, general=of_one_name), id="replaced by name"),
        pytest.param(partial(Model, marked, general=leaves_out_what_is_marked), id="left out of what is done to all"),
        pytest.param(lambda: Model(starts_at_nothing, general=len_of).apply(begin), id="done by a caller"),
    ],
)
def test_what_counts_or_was_nothing_of_its_own_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert not result.findings
    assert result.verdict is Verdict.PASS


def len_of(model: nn.Module) -> int:
    return len(list(model.parameters()))


def test_what_is_copied_into_another_part_is_no_reason_to_look_away() -> None:
    def copies(model: nn.Module) -> None:
        model.second.load_state_dict(model.third.state_dict())  # type: ignore[union-attr]
        model.apply(begin)

    (found,) = examined(partial(Model, open_gate, general=copies)).findings
    assert found.message.startswith("first.gate.bias is given 2 throughout")


def test_weights_that_are_loaded_are_no_choice_of_the_constructors() -> None:
    def loads(model: nn.Module) -> None:
        model.apply(begin)
        model.load_state_dict(Model(general=len_of).state_dict())

    assert not examined(partial(Model, open_gate, general=loads)).findings


def test_parameters_of_a_copied_part_keep_their_history() -> None:
    class Copied(Model):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            part = Part(open_gate)
            self.first, self.second, self.third = (copy.deepcopy(part) for _ in range(3))
            self.last = nn.LayerNorm(8)
            self.apply(begin)

    findings = examined(Copied).findings
    assert [each.evidence["parameter"] for each in findings] == ["first.gate.bias"]


def test_one_number_is_named() -> None:
    def scalar(part: Part) -> None:
        part.slope = nn.Parameter(torch.tensor([math.e]))

    (found, *_) = examined(partial(Model, scalar, general=everything)).findings
    assert found.message.startswith("first.slope is given 2.718 at")
