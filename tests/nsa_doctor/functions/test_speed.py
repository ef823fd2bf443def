"""What is said of a function's speed: beside other attention, and beside the least that its arithmetic can take."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.core.text import short_seconds
from nsa_doctor.probes.functions import shapes, speed
from nsa_doctor.probes.functions.arithmetic import Rate, Work, backward_work, forward_work
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import Shape
from tests.nsa_doctor.functions.examined import subject_of

FUN601 = registry.load("FUN601")
KEPT: dict[tuple[int, ...], Tensor] = {}


@pytest.fixture(autouse=True)
def at_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, the longest length is timed."""
    monkeypatch.setattr(speed, "_ENOUGH_SECONDS", 60.0)


def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """torch's own, called as it is."""
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def no_long_ones(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """One that hands out the values where there are many tokens."""
    return v if q.shape[-2] > 1024 else attend(q, k, v, is_causal)


def keeps_its_last_answer(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """One whose forward is not computed twice for the same tensors."""
    key = (q.data_ptr(), k.data_ptr(), q.shape[-2])
    if q.shape[-2] < 1024:
        return attend(q, k, v, is_causal)
    if key not in KEPT:
        KEPT.clear()
        KEPT[key] = attend(q, k, v, is_causal).detach()
    return KEPT[key] + 0 * v


def of_few_tokens(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """One that refuses long inputs."""
    if q.shape[-2] > 200:
        raise ValueError("at most 200 tokens")
    return attend(q, k, v, is_causal)


def raises_again(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """One that cannot be called twice on the same tensors."""
    if getattr(q, "was_here", 0) > 1:
        raise RuntimeError("these were here before")
    vars(q)["was_here"] = getattr(q, "was_here", 0) + 1
    return attend(q, k, v, is_causal)


def test_a_right_function_has_its_times_in_a_note() -> None:
    result = judge(FUN601, subject_of(attend, "sdpa", "causal"))
    (note,) = result.notes
    assert result.verdict is Verdict.PASS
    assert "B=1, S=2048, 4 heads, D=64 (causal, float32): forward" in note
    assert note.count("times as long as causal scaled_dot_product_attention") == 2
    assert note.count("times the least for its arithmetic") == 2


def test_it_is_timed_beside_the_reference_that_is_given() -> None:
    result = judge(FUN601, subject_of(attend, "sdpa", None, reference=attend))
    (note,) = result.notes
    assert note.count("times as long as the reference") == 2
    assert "the least" not in note  # nothing says which pairs it may read


@pytest.mark.parametrize(
    ("function", "reason"),
    [(no_long_ones, "it does not do all of its work"), (keeps_its_last_answer, "that it was not called with before")],
)
def test_a_pass_that_takes_less_than_its_arithmetic_is_found(function: Any, reason: str) -> None:
    (finding,) = judge(FUN601, subject_of(function, "sdpa", "causal")).findings
    assert reason in finding.message
    assert finding.message.startswith(f"forward of {function.__name__} takes ")
    assert "2.15 GFLOP take" in finding.message
    assert finding.evidence["ratio"] < 0.5
    assert finding.repro.startswith("nsa-doctor run")


def test_other_values_never_lie_where_those_that_were_timed_lay() -> None:
    lay: dict[int, None] = {}

    def seen(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
        if q.shape[-2] == 2048:
            lay[q.data_ptr()] = None
        return attend(q, k, v, is_causal)

    subject = subject_of(seen, "sdpa", "causal")
    timed = speed.speed(subject)
    first = [*lay][-1]
    lay.clear()
    assert speed.seconds_with_other_values(subject, timed, "forward") is not None
    assert len({*lay, first}) == 4


def test_what_serves_no_long_input_is_not_timed_and_need_not_be() -> None:
    result = judge(FUN601, subject_of(of_few_tokens, "sdpa", "causal"))
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
    assert "no input of 256 tokens is served" in result.reason


def test_what_takes_long_is_not_timed_and_need_not_be() -> None:
    subject = subject_of(attend, "sdpa", "causal")
    base = shapes.base(subject)
    subject.known["seconds"] = 1.0
    result = judge(FUN601, subject)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
    assert f"a call at S=256 takes about {(256 / base.keys) ** 2:.0f} s, too long to be timed" in result.reason


def test_one_that_raises_when_it_is_called_again_is_not_timed() -> None:
    result = judge(FUN601, subject_of(raises_again, "sdpa", "causal"))
    assert result.verdict is Verdict.SKIP
    assert "called again on the same tensors it raises RuntimeError: these were here before" in result.reason


def test_work_is_counted_by_pairs() -> None:
    shape = Shape(batch=2, queries=8, keys=8, heads=4, groups=2, head=16, value=32)
    problem = problem_of(subject_of(attend, "sdpa", "causal,gqa=2"), shape)
    assert forward_work(problem, "cpu") == Work(2 * 2 * 4 * 36 * (16 + 32), 0.0)
    assert backward_work(problem, "cpu").operations == 2 * forward_work(problem, "cpu").operations


def test_the_least_time_is_that_of_what_takes_longer() -> None:
    assert Rate(100.0, 10.0).seconds(Work(50.0, 50.0)) == 5.0
    assert Rate(100.0, torch.inf).seconds(Work(50.0, 50.0)) == 0.5
    assert Rate(100.0, 1.0).best(Rate(1.0, 10.0)) == Rate(100.0, 10.0)


def test_times_are_said_in_their_unit() -> None:
    assert [short_seconds(each) for each in (1.2345, 0.0123, 4.5e-5)] == ["1.23 s", "12.3 ms", "45 µs"]


def test_one_input_is_long_enough_for_what_goes_wrong_there_alone() -> None:
    subject = subject_of(no_long_ones, "sdpa", "causal", profile="quick")
    (shape,) = shapes.long(subject)
    assert shape.keys == 1025
    assert shape in list(shapes.every(subject))
    excess = measured(subject, shape).excess("out")
    assert excess is not None
    assert not list(shapes.long(subject_of(no_long_ones, "sdpa", "causal")))  # nor is it part of `smoke`
