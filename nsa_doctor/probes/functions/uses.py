"""Ways to call a function that its signature offers and its declared spec does not ask for.

A function may understand an argument otherwise than its convention, or not at all. It is judged only where it has shown
that it understands it: gradients where the output is right, and the output where it is right for a simpler value of the
same argument, as a mask that is the same in all rows of the batch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.binding import is_given_all, parameters_of
from nsa_doctor.probes.functions.bounds import Excess
from nsa_doctor.probes.functions.calling import Asking, ask, laid_out
from nsa_doctor.probes.functions.measured import Measured, measured_problem
from nsa_doctor.probes.functions.problems import Draw, problem_of, seen_by
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

# Words of a spec, and what they mean, that a function may serve without being declared to.
_OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "scale=0.3": {"scale": 0.3},
    "window=7": {"window": (6, 0), "is_causal": True},
    "softcap=2": {"softcap": 2.0},
    "alibi": {"has_alibi": True},
    "sinks": {"has_sinks": True},
    "gqa=2": {"ratio": 2},
}
_WINDOW = "sliding_window"
_ASKS_FOR_LSE = ("return_attn_probs", "return_lse", "return_softmax_lse")
_SHARE_SEEN = 0.6
_SEED = 51
_BLOCK = 16  # of keys, where a mask is given in blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Use:
    """A call beyond the spec; `simpler` is one whose right output shows that the argument is understood."""

    what: str
    subject: FunctionSubject
    problem: Problem
    simpler: Problem | None = field(default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Misuse:
    """A tensor that is wrong in a use, and for what call the function was seen to be right."""

    use: Use
    measured: Measured
    excess: Excess
    control: str


def uses(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """Those that the function can be asked for."""
    for kind in (_by_words, _other_ways, _variants, _masks, _masks_of_one_query, _biases, _slopes):
        yield from (use for use in kind(subject, shape) if _is_offered(use))
    yield from _with_lse(subject, shape)


def misuse(use: Use) -> Misuse | None:
    """What is wrong in a use of an argument that the function understands; None for no answer."""
    result = _answered(use)
    if result is None:
        return None
    wrong = result.excess("out")
    if wrong is not None:
        if use.simpler is None or not measured_problem(use.subject, use.simpler).is_forward_right:
            return None
        control = "the output is right for a simpler value of that argument"
        return Misuse(use=use, measured=result, excess=wrong, control=control)
    excess = result.first_excess(result.answer.tensors)
    if excess is None or _is_without_lse(use, result):
        return None
    return Misuse(use=use, measured=result, excess=excess, control="the output is right")


def _is_without_lse(use: Use, result: Measured) -> bool:
    """Whether the gradients are right without the one of lse, which functions of the kind may leave out."""
    if use.problem.dlse is None or use.subject.convention.lse_gradient != "may":
        return False
    assert use.simpler is not None
    return measured_problem(use.subject, use.simpler).first_excess(result.answer.tensors) is None


def _answered(use: Use) -> Measured | None:
    """The answer; without a gradient of the bias where that is refused."""
    result = measured_problem(use.subject, use.problem)
    if result.answer.failure is not None and "bias" in use.problem.inputs:
        answer = ask(use.subject, use.problem, Asking(wants=("q", "k", "v")))
        result = replace(result, answer=answer)
    answer = result.answer
    return None if answer.failure is not None or answer.malformed or "out" not in answer.tensors else result


def _is_offered(use: Use) -> bool:
    """Whether the function takes every argument that the call gives."""
    tensors = laid_out(use.subject, use.problem, Asking(wants=()))
    asked = attempt(lambda: use.subject.convention.arguments(use.problem, tensors))
    return not isinstance(asked, Caught) and is_given_all(use.subject.function, asked.keywords)


def _meant(subject: FunctionSubject, word: str, **meaning: Any) -> FunctionSubject | None:
    """The subject declared to do that too; None where it is so declared, or its convention has no way to say it."""
    name = word.partition("=")[0]
    declared = {each.partition("=")[0] for each in subject.spec.words}
    if name in declared or name in subject.convention.refuses or subject.convention.make is not None:
        return None
    words = tuple(each for each in subject.spec.words if each not in ("full", "causal") or "is_causal" not in meaning)
    return replace(subject, spec=replace(subject.spec, words=(*words, word), **meaning), known={})


def _by_words(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    for word, meaning in _OPTIONS.items():
        other = _meant(subject, word, **meaning)
        if other is not None and not _contradicts(subject, word):
            ratio = other.spec.ratio
            sized = replace(shape, heads=shape.groups * ratio) if word.startswith("gqa") else shape
            yield Use(what=f"with {word}", subject=other, problem=problem_of(other, sized, Draw(seed=_SEED)))


def _other_ways(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """The same call made otherwise."""
    problem = problem_of(subject, shape, Draw(seed=_SEED))
    for what, constants in subject.convention.ways.items():
        if subject.spec.is_causal:
            simpler = _without_window(subject, problem, constants) if constants.get("is_optional") else problem
            yield Use(what=what, subject=subject, problem=_given(problem, **constants), simpler=simpler)


def _without_window(subject: FunctionSubject, problem: Problem, constants: Mapping[str, Any]) -> Problem | None:
    """The call made that way without the window that the function names an argument for; None where it has none."""
    if not subject.spec.window or _WINDOW not in parameters_of(subject.function).defaults:
        return None
    spec = replace(subject.spec, window=None)
    (branch,) = problem.branches
    seen = seen_by(spec, subject.convention, problem.shape, torch.Generator())
    return _given(replace(problem, spec=spec, branches=(replace(branch, seen=seen),)), **constants)


def _variants(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """Problems of another kind than the usual one of the convention."""
    problem = problem_of(subject, shape, Draw(seed=_SEED))
    for what, other in subject.convention.variants(problem).items():
        yield Use(what=what, subject=subject, problem=other, simpler=problem)


def _contradicts(subject: FunctionSubject, word: str) -> bool:
    """Whether the spec says the opposite, or sizes for which the word has no place."""
    spec = subject.spec
    is_masked = bool(spec.window) or spec.has_mask
    return (word.startswith("gqa") and spec.heads is not None) or (word in ("causal", "window=7") and is_masked)


def _given(problem: Problem, **constants: Any) -> Problem:
    return replace(problem, constants={**problem.constants, **constants})


def _masks(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """A mask that differs from row to row of the batch, from head to head; one of keys alone."""
    other = _declared_mask(subject)
    if other is None or subject.convention.has_parts or subject.convention.is_cache:
        return
    problem = problem_of(other, shape, Draw(seed=_SEED))
    (branch,) = problem.branches
    for what, seen, constants in _drawn_masks(problem, branch.seen):
        whole = replace(problem, branches=(replace(branch, seen=seen),))
        alike = replace(problem, branches=(replace(branch, seen=seen[:1, :1]),))
        constants = {**constants, "block_size": _BLOCK}
        yield Use(
            what=f"with a mask that {what}",
            subject=other,
            problem=_given(whole, **constants),
            simpler=_given(alike, **constants),
        )


def _masks_of_one_query(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """A mask that hides some keys of the one query of a step; where all queries ask at once it is understood."""
    other, convention = _declared_mask(subject), subject.convention
    if other is None or subject.spec.is_square or convention.make is not None or convention.is_cache or shape.parts:
        return
    whole = problem_of(other, shape, Draw(seed=_SEED))
    problem = problem_of(other, replace(shape, queries=1), Draw(seed=_SEED))
    (branch,) = problem.branches
    hidden = torch.arange(shape.keys) % 3 == 1 + torch.arange(shape.batch)[:, None, None, None] % 2
    masked = replace(problem, branches=(replace(branch, seen=(branch.seen & ~hidden) | _first(branch.seen)),))
    yield Use(what="with a mask for one query", subject=other, problem=masked, simpler=whole)


def _declared_mask(subject: FunctionSubject) -> FunctionSubject | None:
    """The subject with a mask in place of what it is declared to hide by itself."""
    return subject if subject.spec.has_mask else _meant(subject, "mask", has_mask=True)


def _drawn_masks(problem: Problem, seen: Tensor) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    shape, chance = problem.shape, torch.Generator().manual_seed(_SEED)
    yield "differs between rows of the batch", seen, {}
    yield "differs between heads", seen & (_in_blocks(shape, chance) | _first(seen)), {}
    if not (problem.spec.is_causal or problem.spec.window):
        keys = torch.arange(shape.keys) < shape.keys - 9 * torch.arange(1, shape.batch + 1)[:, None, None, None]
        yield "hides the last keys of each row", (keys | _first(keys)).expand(seen.shape), {"is_padding": True}


def _in_blocks(shape: Shape, chance: torch.Generator) -> Tensor:
    """Keys of some blocks, and some keys of those, by row, head and query."""
    count = -(-shape.keys // _BLOCK)
    sizes = (shape.batch, shape.heads, shape.queries)
    blocks = torch.rand(shape.batch, shape.heads, -(-shape.queries // _BLOCK), count, generator=chance) < _SHARE_SEEN
    seen = blocks.repeat_interleave(_BLOCK, 2).repeat_interleave(_BLOCK, 3)[:, :, : shape.queries, : shape.keys]
    return seen & (torch.rand(*sizes, shape.keys, generator=chance) < _SHARE_SEEN)


def _first(seen: Tensor) -> Tensor:
    """The first key that each query may read."""
    return torch.zeros_like(seen).scatter(-1, seen.int().argmax(-1, keepdim=True), True)


def _biases(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """A float mask that learns, full and broadcast; what it is added to hides nothing."""
    if not subject.convention.has_bias or subject.spec.has_alibi:
        return
    words = ("full", *(each for each in subject.spec.words if each.partition("=")[0] in ("gqa", "scale", "head_dim")))
    spec = replace(subject.spec, words=words, is_causal=False, window=None, has_mask=False)
    other, chance = replace(subject, spec=spec, known={}), torch.Generator().manual_seed(_SEED)
    problem = problem_of(other, shape, Draw(seed=_SEED))
    one = torch.randn(1, shape.queries, 1, shape.keys, generator=chance).to(problem.inputs["q"])
    alike = replace(problem, inputs={**problem.inputs, "bias": one})
    for what, sizes in (
        ("[B, H, Sq, Sk]", (shape.batch, shape.queries, shape.heads, shape.keys)),
        ("[1, H, 1, Sk]", (1, 1, shape.heads, shape.keys)),
        ("[1, 1, Sq, Sk]", (1, shape.queries, 1, shape.keys)),
        ("[B, 1, 1, Sk]", (shape.batch, 1, 1, shape.keys)),
    ):
        bias = torch.randn(*sizes, generator=chance).to(one)
        drawn = replace(problem, inputs={**problem.inputs, "bias": bias})
        yield Use(what=f"with a float mask {what}", subject=other, problem=drawn, simpler=alike)


def _slopes(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """ALiBi slopes of each row of the batch."""
    other = subject if subject.spec.has_alibi else _meant(subject, "alibi", has_alibi=True)
    if other is None or not subject.convention.has_slopes_of_rows or shape.parts:
        return
    problem = problem_of(other, shape, Draw(seed=_SEED))
    assert problem.slopes is not None
    rows = torch.arange(1, shape.batch + 1)[:, None]
    equal = problem.slopes.expand(shape.batch, -1).contiguous()
    yield Use(
        what="with ALiBi slopes that differ between rows of the batch",
        subject=other,
        problem=replace(problem, slopes=equal / rows),
        simpler=replace(problem, slopes=equal),
    )


def _with_lse(subject: FunctionSubject, shape: Shape) -> Iterator[Use]:
    """The logarithm of the sum of exponentials, where it is handed out on demand, and differentiated."""
    for name in _ASKS_FOR_LSE:
        if name in parameters_of(subject.function).defaults:
            other = replace(subject, function=with_keywords(subject.function, **{name: True}), known={})
            problem = problem_of(other, shape, Draw(seed=_SEED))
            yield Use(what=f"with {name}=True", subject=other, problem=problem, simpler=problem)
            if subject.convention.lse_gradient != "none" and subject.has_gradients:
                chance = torch.Generator().manual_seed(_SEED)
                dlse = torch.randn(shape.batch, shape.heads, shape.queries, generator=chance)
                both = replace(problem, dlse=dlse)
                yield Use(what=f"with {name}=True and a gradient of lse", subject=other, problem=both, simpler=problem)
            return


def with_keywords(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The function, always called with those keywords."""

    @wraps(function)
    def called(*positional: Any, **keywords: Any) -> Any:
        return function(*positional, **{**keywords, **more})

    return called
