"""What every pass computes and nothing reads is a note, and a finding where it is plain what was meant."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Layer(nn.Linear):
    """A layer of tokens, followed by something that is given the layer too."""

    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.then, self.kept, self.wants_weights = then, None, False
        self.then_another = torch.sin

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, super().forward(x))


def sums_for_nothing(module: nn.Module, y: Tensor) -> Tensor:
    summed = y.cumsum(1)  # noqa: F841
    return y.tanh()


def only_in_training(module: nn.Module, y: Tensor) -> Tensor:
    if module.training:
        noise = y.sin()  # noqa: F841
    return y


def takes_the_first(module: nn.Module, y: Tensor) -> Tensor:
    largest, where = y.max(-1, keepdim=True)  # noqa: RUF059
    values, _ = y.sort(-1)  # noqa: RUF059
    return y - largest


def may_return_weights(module: nn.Module, y: Tensor) -> Tensor:
    weights = y.softmax(-1)
    return weights if module.wants_weights else y


def keeps_weights(module: nn.Module, y: Tensor) -> Tensor:
    weights = y.softmax(-1)
    module.kept = weights.detach()
    return y


def writes_in_place(module: nn.Module, y: Tensor) -> Tensor:
    scaled = y.mul_(2)  # noqa: F841
    return y


def counts_up(module: nn.Module, y: Tensor) -> Tensor:
    total = y.sum()
    total += y.mean()
    return y


def discards(module: nn.Module, y: Tensor) -> Tensor:
    _unused = y.cumsum(1)
    return y


def drops_a_mask(module: nn.Module, y: Tensor) -> Tensor:
    hidden = torch.ones(y.shape[1], WIDTH, dtype=torch.bool, device=y.device).triu(1)
    y.masked_fill(hidden, 0.0)
    return y.tanh()


def goes_on_with_the_attribute(module: nn.Module, y: Tensor) -> Tensor:
    weight = module.weight.exp()  # noqa: F841
    return y @ module.weight


class Meter:
    """Something of a library that has a method of the name of an operation."""

    def add(self, value: Tensor) -> None:
        """Counts nothing."""


METER = Meter()


def counts(module: nn.Module, y: Tensor) -> Tensor:
    METER.add(y.mean())
    return y


def counts_a_sum(module: nn.Module, y: Tensor) -> Tensor:
    METER.add(y + 1)
    return y


def goes_on_with_a_part(module: nn.Module, y: Tensor) -> Tensor:
    then_another = module.then_another(y)
    del then_another
    return module.then_another(y.tanh())


def writes(module: nn.Module, y: Tensor) -> Tensor:
    y.mul_(2)
    torch.exp(y, out=torch.empty(0)) if not y.requires_grad else y.tanh_()
    return y


def made_of_the_attribute_once_more(module: nn.Module, y: Tensor) -> Tensor:
    weight = module.weight.exp()
    return y @ (weight + module.weight)


def goes_on_with_the_forerunner(module: nn.Module, y: Tensor) -> Tensor:
    context = y.exp()
    context_cumsum = context.cumsum(1)  # noqa: F841
    return context * y


def looks_at_a_mean(module: nn.Module, y: Tensor) -> Tensor:
    context = y.exp()
    context_mean = context.mean(1)  # noqa: F841
    return context * y


def looks_at_the_last(module: nn.Module, y: Tensor) -> Tensor:
    context = y.exp()
    context_last = context[:, -1]  # noqa: F841
    return context * y


def normalises_for_nothing(module: nn.Module, y: Tensor) -> Tensor:
    weights = y.exp()
    weights_normed = weights / weights.sum(-1, keepdim=True)  # noqa: F841
    return weights * y


def writes_through_a_view(module: nn.Module, y: Tensor) -> Tensor:
    scaled = y * 1
    scaled_even = scaled[..., ::2].mul_(2.0)  # noqa: F841
    return scaled.tanh()


def made_of_another_name(module: nn.Module, y: Tensor) -> Tensor:
    context = y.exp()
    contexts = context.cumsum(1)  # noqa: F841
    return context * y


def overwritten(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y.softmax(1) * y
    shape = y.shape
    mixed = y.tanh().reshape(shape)
    return mixed


def overwritten_where_it_is_read(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y.softmax(1) * y
    mixed = (mixed * 0).detach() + y.tanh()
    return mixed


def overwritten_at_times(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y.softmax(1).detach() * 0 if module.wants_weights else y.softmax(1)
    if not module.wants_weights:
        mixed = y.tanh()
    return mixed


def overwritten_in_the_next_turn(module: nn.Module, y: Tensor) -> Tensor:
    mixed, total = y.sin(), y
    for _ in range(2):
        total = total + mixed.detach()
        mixed = y.cos()
    return total


def kept_by_a_break(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y
    for last in (False, True):
        mixed = y.softmax(1) * y
        if last:
            break
        mixed = y.tanh()
    return mixed


def kept_by_what_raises(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y
    try:
        mixed = y.softmax(1) * y
        mixed = y.tanh()
    except RuntimeError:
        pass
    return mixed


def read_by_a_function_within(module: nn.Module, y: Tensor) -> Tensor:
    look = lambda: mixed.sum() + 0  # noqa: E731
    mixed = y.softmax(1) * y
    module.kept = look().detach()
    mixed = y.tanh()
    return mixed


def annotated_behind(module: nn.Module, y: Tensor) -> Tensor:
    mixed = y.softmax(1).detach() * 0 + y.cos().detach()
    mixed: Tensor
    return y + mixed


def overwritten_over_lines(module: nn.Module, y: Tensor) -> Tensor:
    mixed = (  # the first of several lines
        y.softmax(1)
        .cos()
    )  # fmt: skip
    mixed = y.tanh()
    return mixed


def examined(then: Callable[[nn.Module, Tensor], Tensor]) -> Result:
    subject = small_subject(lambda: Layer(then), width=WIDTH)
    return run_check(registry.load("GRD213"), subject)


class Store(Meter):
    """Another of a library, with a method of the name of an operation of tensors alone."""

    def index_add(self, value: Tensor) -> None:
        """Keeps nothing."""


class Masked(nn.Module):
    """A mask, where it is given one, whose value is dropped."""

    store = Store()

    def softmax(self, x: Tensor) -> Tensor:
        """One of its own, called by itself."""
        self.softmax(x)
        try:
            x.masked_fill(x > 0, 0.0)
        except RuntimeError:
            return x
        return x

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x.masked_fill(~mask, -1e9)
            self.store.index_add(x)
            x.masked_fill_(~mask, 0.0)
        return x.tanh()


def test_a_value_that_is_dropped_where_no_pass_comes_is_found() -> None:
    subject = small_subject(Masked, width=WIDTH)
    (finding,) = run_check(registry.load("GRD213"), subject).findings
    assert finding.message.startswith("x.masked_fill(~mask, -1000000000.0) stands by itself in a method")
    assert finding.where.line == Masked.forward.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("then", "name"),
    [
        (sums_for_nothing, "summed"),
        (looks_at_a_mean, "context_mean"),
        (looks_at_the_last, "context_last"),
        (made_of_another_name, "contexts"),
    ],
)
def test_a_variable_that_nothing_reads_is_a_note(then: Callable[[nn.Module, Tensor], Tensor], name: str) -> None:
    result = examined(then)
    (note,) = result.notes
    assert result.verdict is Verdict.PASS
    assert note.startswith(f"{name} is computed in every pass, and nothing reads it (Layer at ")


@pytest.mark.parametrize(
    ("then", "message", "text"),
    [
        (
            drops_a_mask,
            "y.masked_fill(hidden, 0.0) is computed in every pass, and nothing reads it; its value is dropped: "
            "masked_fill_() writes in place, it does not",
            "y.masked_fill(hidden, 0.0)",
        ),
        (goes_on_with_the_attribute, "reads module.weight in its place", "weight = module.weight.exp()"),
        (normalises_for_nothing, "reads weights in its place", "weights_normed = weights / weights.sum"),
        (goes_on_with_the_forerunner, "reads context in its place", "context_cumsum = context.cumsum(1)"),
        (overwritten, "mixed is computed in every pass, and nothing reads it; line", "mixed = y.softmax(1) * y"),
        (
            overwritten_over_lines,
            "mixed is computed in every pass, and nothing reads it; line",
            "mixed = (  # the first",
        ),
    ],
)
def test_a_value_that_is_dropped_and_one_whose_source_is_read_are_findings(
    then: Callable[[nn.Module, Tensor], Tensor], message: str, text: str
) -> None:
    (finding,) = examined(then).findings
    assert message in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).strip().startswith(text)


@pytest.mark.parametrize(
    "then",
    [
        counts,
        counts_a_sum,
        writes,
        made_of_the_attribute_once_more,
        only_in_training,
        takes_the_first,
        may_return_weights,
        keeps_weights,
        writes_in_place,
        writes_through_a_view,
        counts_up,
        discards,
        overwritten_where_it_is_read,
        overwritten_at_times,
        overwritten_in_the_next_turn,
        kept_by_a_break,
        kept_by_what_raises,
        read_by_a_function_within,
        annotated_behind,
    ],
)
def test_what_may_come_to_something_is_none(then: Callable[[nn.Module, Tensor], Tensor]) -> None:
    result = examined(then)
    assert (result.verdict, result.notes) == (Verdict.PASS, ())


def test_a_part_that_is_called_again_is_not_read_in_place_of_what_it_gave() -> None:
    assert examined(goes_on_with_a_part).findings == ()
