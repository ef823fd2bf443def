"""Wrong functions are found, and the finding names what is wrong; without a spec, what shows without one is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa import nsa_attention
from nsa_doctor.adapters.functions.load_function import FunctionRequest, load_function
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.function import Arguments, Convention, Problem
from tests.nsa_doctor.functions.examined import results, subject_of
from tests.nsa_doctor.functions.healthy import flash as right
from tests.nsa_doctor.functions.wrong import WRONG, flash


def first(ended: dict[str, Result]) -> tuple[str, str]:
    """Code and tensor of the first finding."""
    finding = next(each for result in ended.values() for each in result.findings)
    return finding.code, str(finding.evidence.get("tensor", ""))


def each_kind_once() -> Iterator[Any]:
    """Every slip; those whose code and tensor another one has before it are for the full run."""
    seen: set[tuple[str, str]] = set()
    for slip, (_, _, code, tensor) in WRONG.items():
        is_long = code == "FUN303"  # the quick profile; the check's own planted bug is in the short run
        yield pytest.param(slip, marks=pytest.mark.full) if is_long or (code, tensor) in seen else slip
        seen.add((code, tensor))


@pytest.mark.parametrize("slip", list(each_kind_once()))
def test_a_wrong_function_is_found_by_its_check(slip: str) -> None:
    spec, dtype, code, tensor = WRONG[slip]
    profile = "quick" if code == "FUN303" else "smoke"
    ended = results(subject_of(flash(slip), "flash", spec, dtype=dtype, profile=profile), [code])
    assert first(ended)[0] == code
    assert not tensor or first(ended)[1] == tensor


@pytest.mark.full
@pytest.mark.parametrize("slip", WRONG)
def test_the_first_check_that_finds_a_wrong_function_says_what_is_wrong(slip: str) -> None:
    spec, dtype, code, tensor = WRONG[slip]
    profile = "quick" if code == "FUN303" else "smoke"
    ended = results(subject_of(flash(slip), "flash", spec, dtype=dtype, profile=profile))
    found = [each for result in ended.values() for each in result.findings]
    assert found, {code: result.reason for code, result in ended.items()}
    assert first(ended)[0] == code, [each.message for each in found]
    assert not tensor or first(ended)[1] == tensor, [each.message for each in found]


NOT_BY_SPEC = {  # what is found where nothing is declared, and by which check
    "dk 5 % too large": ("FUN403", "dk"),
    "dq without scale": ("FUN403", "dq"),
    "k detached": ("FUN402", "dk"),
    "rows of the batch mixed": ("FUN304", "out"),
    "kept by shape": ("FUN503", ""),
    "query scaled in place": ("FUN501", ""),
    "last tile not written": ("FUN502", "out"),
}


@pytest.mark.parametrize("slip", NOT_BY_SPEC)
def test_much_is_found_where_nothing_is_declared(slip: str) -> None:
    code, tensor = NOT_BY_SPEC[slip]
    ended = results(subject_of(flash(slip), "flash", None, profile="quick"), [code])
    assert first(ended)[0] == code
    assert not tensor or first(ended)[1] == tensor


def test_a_function_that_is_right_is_silent_where_nothing_is_declared() -> None:
    ended = results(subject_of(flash(""), "flash", None))
    assert [each.message for result in ended.values() for each in result.findings] == []
    assert {code for code, result in ended.items() if not result.is_required} == {
        "FUN201",
        "FUN301",
        "FUN302",
        "FUN305",
        "FUN306",
        "FUN401",
        "FUN506",  # it calls no operator of its own
        "FUN507",  # it is not on a GPU
    }


Occasion = Callable[[Tensor], bool]


class _DqOnOccasion(torch.autograd.Function):
    """Adds to the first query's gradient where the gradient of the output is an occasion to."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, added: float, occasion: Occasion) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.added, ctx.occasion = added, occasion
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (dout,) = gradients
        inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            out = scaled_dot_product_attention(*inputs, is_causal=True)
        dq, dk, dv = torch.autograd.grad(out, inputs, dout)
        first = torch.arange(dq.shape[2])[:, None] == 0
        return dq + (first * ctx.added * ctx.occasion(dout)).to(dq.dtype), dk, dv, None, None


def _is_strided(dout: Tensor) -> bool:
    return not dout.is_contiguous()


def _causal(added: float = 0.0, occasion: Occasion = _is_strided) -> Callable[..., Tensor]:
    """Causal by itself: the first query reads one key, and its gradient is zero but for rounding."""
    return lambda q, k, v: _DqOnOccasion.apply(q, k, v, added, occasion)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("function", "like"), [(_causal(), "sdpa"), (nsa_attention, "native")], ids=["sdpa", "native"])
def test_layouts_may_change_what_rounding_leaves_of_terms_that_cancel(
    function: Callable[..., Any], like: str, dtype: str
) -> None:
    subject = subject_of(function, like, None, dtype=dtype, profile="quick")
    assert [each.message for each in results(subject, ["FUN303"])["FUN303"].findings] == []


@pytest.mark.parametrize(("dtype", "added"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_a_gradient_that_cancels_is_found_wrong_by_more_than_its_terms_round(dtype: str, added: float) -> None:
    subject = subject_of(_causal(added), "sdpa", None, dtype=dtype, profile="quick")
    (finding,) = results(subject, ["FUN303"])["FUN303"].findings
    assert finding.evidence["tensor"] == "dq"
    assert "dq of <lambda> differs from an earlier call" in finding.message
    assert "query 0" in finding.message


@pytest.mark.parametrize(("added", "found"), [(1e-6, []), (1e-3, ["dq"])])
def test_a_row_alone_may_change_what_rounding_leaves_of_terms_that_cancel(added: float, found: list[str]) -> None:
    subject = subject_of(_causal(added, lambda dout: dout.shape[0] == 1), "sdpa", None)
    assert [each.evidence["tensor"] for each in results(subject, ["FUN304"])["FUN304"].findings] == found


def test_rounding_of_terms_that_cancel_does_not_differ_from_a_reference() -> None:
    def reference(*positional: Any, **keywords: Any) -> Any:
        return nsa_attention(*positional, **keywords, impl="reference")  # its gradient at one visible key is zero

    subject = subject_of(nsa_attention, "native", None, reference=reference)
    assert [each.message for each in results(subject, ["FUN401"])["FUN401"].findings] == []


@pytest.mark.parametrize(("slip", "code"), [("scale off by 2 %", "FUN301"), ("dk 5 % too large", "FUN401")])
def test_a_function_is_compared_with_a_reference(slip: str, code: str) -> None:
    subject = subject_of(flash(slip), "flash", None, dtype="bfloat16", reference=flash(""))
    assert first(results(subject, [code]))[0] == code
    healthy = subject_of(flash(""), "flash", None, dtype="bfloat16", reference=right)
    assert [
        each.message for result in results(healthy, ["FUN301", "FUN302", "FUN401"]).values() for each in result.findings
    ] == []


def test_given_inputs_are_part_of_what_is_compared() -> None:
    def wrong_for_large_values(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        return right(q, k, v, causal=causal) * (1.0 if float(v.detach().abs().max()) != 77.0 else 1.1)

    chance = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 20, 2, 64, generator=chance)
    v[0, 0, 0, 0] = 77.0
    subject = replace(subject_of(wrong_for_large_values, "flash"), given={"q": q, "k": k, "v": v})
    finding = results(subject, ["FUN302"])["FUN302"].findings[0]
    assert finding.evidence["values"] == "the given inputs"
    assert finding.evidence["tensor"] == "out"


def test_a_convention_of_the_users_own_is_called_as_it_says() -> None:
    def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
        return Arguments(positional=(tensors["k"], tensors["v"], tensors["q"]))

    own = Convention(
        name="own", summary="f(k, v, q)", layout="bshd", arguments=arguments, read=lambda y, _: {"out": y["y"]}
    )
    subject = replace(
        subject_of(right, "flash", "causal,builtin"),
        convention=own,
        function=lambda k, v, q: {"y": right(q, k, v, causal=True)},
    )
    ended = results(subject, ["FUN102", "FUN201", "FUN301", "FUN401"])
    assert {result.verdict.value for result in ended.values()} == {"PASS"}


def test_a_function_called_by_the_wrong_convention_hears_of_the_right_one() -> None:
    request = FunctionRequest(subject="fn:tests.nsa_doctor.functions.healthy:flash", like="sdpa", profile="smoke")
    (finding,) = results(load_function(request), ["FUN102"])["FUN102"].findings
    assert finding.message.endswith("; called by --like flash it has the right form everywhere")
