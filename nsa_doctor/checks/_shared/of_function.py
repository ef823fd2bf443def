"""What checks of functions say: which function, tensor, spec, shapes and dtype, how far from what is right, where."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note, Scalar
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.functions.bounds import Excess
from nsa_doctor.probes.functions.calling import Answer
from nsa_doctor.probes.functions.forward_lines import line_of
from nsa_doctor.subject.function import FunctionSubject, Problem

_MEASURES = {
    "element": "error beside the magnitude of its terms",
    "tile": "error of 16 rows of one head",
    "whole": "relative error of a head",
    "factor": "deviation of the whole tensor's factor from 1",
}
_LENGTHWISE = {"dk": "key", "dv": "key"}
_SHOWN_FACTOR = 0.002


def require_spec(subject: FunctionSubject) -> None:
    """Raise NotApplicableError where nothing is declared that there could be an oracle of."""
    if not subject.has_truth:
        raise NotApplicableError("no --spec says what it computes, and no --reference")


def differs(
    subject: FunctionSubject,
    code: str,
    problem: Problem,
    excess: Excess,
    answer: Answer,
    control: str = "",
    wrong: Collection[str] = (),
) -> Finding:
    """A tensor that leaves its bound."""
    by = "the float64 oracle" if subject.spec.is_declared else "an earlier call"
    by = by if subject.reference is None else "the reference"
    message = (
        f"{excess.tensor} of {subject.name} differs from {by} {conditions(subject, problem)}: "
        f"{_MEASURES[excess.measure]} {short_number(excess.error)} (tolerance {short_number(excess.bound)})"
    )
    if excess.num_wrong:
        message += f"; {excess.num_wrong} of {excess.num_rows} rows are beyond"
    message += f"; worst at {index_text(excess)}: {short_number(excess.value)} instead of {short_number(excess.truth)}"
    if abs(excess.factor) > _SHOWN_FACTOR and excess.measure in ("whole", "factor"):
        message += f"; along the truth it is off by {excess.factor:.1%}"
    evidence: dict[str, Scalar] = {
        "tensor": excess.tensor,
        "target": excess.tensor,
        "measure": excess.measure,
        "error": excess.error,
        "tolerance": excess.bound,
        "index": ", ".join(map(str, excess.index)),
        "rows": excess.num_wrong,
    }
    return found(
        subject, code, message, problem, answer, evidence, excess.tensor.startswith("d"), control, wrong, "weights"
    )


def found(
    subject: FunctionSubject,
    code: str,
    message: str,
    problem: Problem,
    answer: Answer | None = None,
    evidence: Mapping[str, Scalar] | None = None,
    is_backward: bool = False,
    control: str = "",
    wrong: Collection[str] = (),
    made_in: str | None = None,
) -> Finding:
    """A finding at the function's line, or at that of its own backward which the `wrong` gradients alone depend on.

    made_in: what the line does that an output is wrong by, a kind of `forward_lines.line_of`.
    """
    kinds = (*(("detached",) if is_backward else ()), *((made_in,) if made_in else ()))
    if not is_backward or answer is None or answer.backward is None:
        place = line_of(subject, problem, *kinds) if kinds else subject.place
    else:
        named = wrong or [str((evidence or {}).get("tensor", ""))]
        right = [name for name in answer.tensors if name.startswith("d") and name not in named]
        place = answer.backward.place_of(named, right)
    shape = {"shape": str(problem.shape), "dtype": subject.dtype, "spec": ",".join(subject.spec.words)}
    return Finding(
        message=message,
        where=place,
        evidence={**(evidence or {}), **shape, "values": problem.about or "normal"},
        control=control,
        repro=command_for(subject, code),
    )


def conditions(subject: FunctionSubject, problem: Problem) -> str:
    """`at B=2, S=64, 4 heads, D=64 (causal, bfloat16, sharp softmax)`."""
    words = [*subject.spec.words, subject.dtype, *([problem.about] if problem.about else [])]
    return f"at {problem.shape} ({', '.join(words)})"


def index_text(excess: Excess) -> str:
    """`batch 0, query 12, head 3`."""
    position, index = _LENGTHWISE.get(excess.tensor, "query"), excess.index
    names = {
        4: ("batch", position, "head", "channel"),
        3: ("batch", "head", position) if excess.tensor == "lse" else ("batch", position, "head"),
        1: ("head",),
    }[len(index)]
    return ", ".join(f"{name} {each}" for name, each in zip(names, index, strict=True))


def refused(subject: FunctionSubject, answers: Iterable[tuple[Problem, Answer]]) -> Iterator[Note]:
    """One note for each reason that the function gives for not serving a shape."""
    by_sentence: dict[str, list[str]] = {}
    for problem, answer in answers:
        if answer.failure is not None:
            by_sentence.setdefault(answer.failure.sentence, []).append(str(problem.shape))
    for sentence, shapes in by_sentence.items():
        more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
        yield Note(message=f"not served: {shapes[0]}{more}: {sentence}")


def injected(subject: FunctionSubject, function: Callable[..., Any]) -> FunctionSubject:
    """The subject with a faulty function in place of its own, which takes the same arguments."""
    faulty = update_wrapper(function, subject.function) if hasattr(subject.function, "__name__") else function
    code = function.__code__
    place = Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
    return replace(subject, function=faulty, place=place, known={})


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def with_scaled_gradient(subject: FunctionSubject, factor: Callable[[Mapping[str, Any]], float]) -> FunctionSubject:
    """The subject with the gradient of its keys times a factor, which the keywords of a call decide."""

    def scales_a_gradient(*positional: Any, **keywords: Any) -> Any:
        index = [i for i, each in enumerate(positional) if isinstance(each, Tensor) and each.is_floating_point()][1]
        changed = _Scaled.apply(positional[index], factor(keywords))
        return subject.function(*positional[:index], changed, *positional[index + 1 :], **keywords)

    return injected(subject, scales_a_gradient)


def layout_words(finding: Finding, layout: str) -> Finding:
    """The finding with the memory layout that it was seen with."""
    return replace(
        finding, message=f"with {layout}, {finding.message}", evidence={**finding.evidence, "layout": layout}
    )
