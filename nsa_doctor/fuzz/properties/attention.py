"""Every branch, the mix and every gradient against dense attention under a mask, in float64."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.facts import Violation
from nsa_doctor.core.measurement import Place
from nsa_doctor.fuzz import plain_rules as rules
from nsa_doctor.fuzz.cases import Attention
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.properties.dense import Dense, dense
from nsa_doctor.fuzz.properties.operators import (
    BRANCHES,
    SHORT,
    attend,
    branch_place,
    differentiate,
    geometry_of,
)
from nsa_doctor.fuzz.properties.ranges import place_of
from nsa_doctor.fuzz.properties.tensors import Watch, laid_out, normal
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.tolerance import deviation, largest
from nsa_doctor.subject.contract import Subject

_STEEPEST = 6.0  # directions are normal numbers, of which there are too few to exceed it
_HEADROOM = 4.0  # a truth this far below the dtype's largest number must come out finite


def examine(case: Attention, subject: Subject) -> Iterator[Failure]:
    """What does not hold for this case."""
    named = {name: tensor.requires_grad_() for name, tensor in _tensors(case, subject.device).items()}
    watch = Watch().over(**named)
    masks, slots = _masks(case)
    slots = slots.to(subject.device)
    if case.impl == "subject":
        assert subject.attend is not None
        outs, place = _by_seam(case, subject, named, slots), {"selected": place_of(subject.attend)}
    else:
        output = attend(named, geometry_of(case.sizes), case.impl, case.tile_budget, slots=slots)
        outs = {name: getattr(output, name) for name in (*BRANCHES, "out")}
        place = {name: branch_place(name, case.impl, named["q"]) for name in outs}
        if not torch.equal(output.slots, slots):
            yield Failure(
                violation=Violation.SLOTS_NOT_HELD, message="other slots come back than were given", where=place["out"]
            )
    if written := watch.written():
        message = f"{written[0]} is written into"
        yield Failure(violation=Violation.ARGUMENT_WRITTEN, message=message, where=place.get("out", place["selected"]))
    yield from _compared(case, named, outs, masks, place)


def _by_seam(case: Attention, subject: Subject, named: Mapping[str, Tensor], slots: Tensor) -> dict[str, Tensor]:
    assert subject.attend is not None
    seam, arguments = subject.attend, (named["q"], named["k_sel"], named["v_sel"], slots)
    return {"selected": ask("forward", lambda: seam(*arguments), None)}


def _compared(
    case: Attention,
    named: Mapping[str, Tensor],
    outs: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    place: Mapping[str, Place],
) -> Iterator[Failure]:
    truth = dense({name: tensor.detach().double().cpu() for name, tensor in named.items()}, masks)
    plain = dense({name: tensor.detach().cpu() for name, tensor in named.items()}, masks)
    slack = _Slack.of(case, truth)
    faulty: list[str] = []
    for name, out in outs.items():
        if faulty and name == "out":
            continue  # it is the mix of what has been reported already
        if out.shape != truth.outs[name].shape or out.dtype != named["q"].dtype:
            message = f"{name} is {str(out.dtype)[6:]} {list(out.shape)}, expected {list(truth.outs[name].shape)}"
            yield _failure(name, Violation.WRONG_SHAPE, message, place[name])
            return
        complaint = _complaint(out, plain.outs[name], truth.outs[name], case.num_tokens, slack.output)
        if complaint:
            faulty.append(name)
            violation, text = complaint
            yield _failure(name, violation, f"{name} {text}", place[name])
    last = "out" if "out" in outs else "selected"
    direction = normal(outs[last].shape, case.seed + 99, 1.0, named["q"].dtype)
    leaves = {name: named[name] for name in truth.leaves(outs)}
    grads = differentiate((outs[last] * direction.to(outs[last])).sum(), leaves)
    exact, usual = (each.gradients(last, direction, leaves) for each in (truth, plain))
    num_terms = max(case.num_tokens, case.num_queries) * case.heads
    for name, grad in grads.items():
        branch = next((long for long, short in SHORT.items() if name.endswith(short)), last)
        scale = max(largest(each) for each in exact.values())
        complaint = _complaint(grad, usual[name], exact[name], num_terms, slack.gradient, scale)
        if complaint and branch not in faulty and (last not in faulty or branch != last):
            wrong, text = complaint
            gradient, violation = f"gradient of {name}", Violation.GRADIENT_WRONG
            message = f"{gradient} {text}"
            yield Failure(violation=violation, name=f"{gradient}: {wrong}", message=message, where=place[branch])
            return


def _failure(name: str, violation: Violation, message: str, place: Place) -> Failure:
    return Failure(violation=violation, name=f"{name}: {violation}", message=message, where=place)


def _complaint(
    result: Tensor, plain: Tensor, truth: Tensor, num_terms: int, slack: float, scale: float | None = None
) -> tuple[Violation, str] | None:
    if not truth.numel():
        return None
    if not bool(isfinite(result).all()):
        if largest(truth) * _HEADROOM > torch.finfo(result.dtype).max:
            return None  # nor could it
        count = int((~isfinite(result)).sum())
        return Violation.NOT_FINITE, f"has {count} of {result.numel()} values that are not finite, the truth none"
    if not bool(isfinite(plain).all()):
        plain = truth
    compared = deviation(result, plain, truth, num_terms=num_terms, scale=scale)
    bound = compared.bound + slack
    if compared.error <= bound:
        return None
    text = f"is {compared.error:.2g} from dense attention, at most {bound:.2g} expected"
    return Violation.DIFFERS_FROM_DENSE, text


@dataclass(frozen=True)
class _Slack:
    """What rounding of scores, and numbers too small to hold, may move a result by, whoever computes it.

    A score is a sum of Dk products, each rounded, then scaled: its error is at most (Dk + 4) units of its terms' size.
    Scores off by x move weights by a factor of e^2x at most, and no weights can move by more than 2 in sum.
    """

    output: float
    gradient: float

    @classmethod
    def of(cls, case: Attention, truth: Dense) -> "_Slack":
        dtype = getattr(torch, case.dtype)
        sums, sizes = torch.finfo(torch.promote_types(dtype, torch.float32)), truth.sizes
        off = (case.d_k + 4) * sums.eps * truth.largest_score
        moved = min(2.0, float(torch.expm1(torch.tensor(2 * off, dtype=torch.float64))))
        value, weight = sizes["v"], max(1.0, sizes["gates"])
        num = max(case.num_tokens, case.num_queries) * case.heads
        tiny = num * max(case.d_k, case.d_v) * (sums.tiny + torch.finfo(dtype).smallest_normal)
        reach = max(1.0, sizes["q"]) * max(1.0, sizes["k"]) * max(1.0, value) * weight
        # Backward, a weight times (slope of its value − mean slope) cancels: the mean is a sum over Dv of outputs that
        # have been rounded to the dtype.
        moved_back = moved + 4 * torch.finfo(dtype).eps + (case.d_v + num) * sums.eps
        steepest = _STEEPEST * weight
        score_slope = 4 * moved_back * case.d_v * steepest * value
        slopes = (
            score_slope * sizes["k"],
            score_slope * sizes["q"] * num,
            moved_back * steepest * num,
            moved_back * steepest * case.heads * case.d_v * value,
        )
        return cls(output=3 * moved * value * weight + tiny * reach, gradient=max(slopes) + _STEEPEST * tiny * reach)


def _tensors(case: Attention, device: str) -> dict[str, Tensor]:
    """Arguments of `nsa_attention`, in the case's strides."""
    dtype, sizes = getattr(torch, case.dtype), case.sizes
    blocks = len(rules.compressed_blocks(case.num_tokens, sizes.l, sizes.d))
    newest = min(case.num_tokens, case.num_queries + sizes.w - 1) if case.is_window_trimmed else case.num_tokens
    shapes = {"q": (case.rows, case.num_queries, case.groups * case.heads, case.d_k)}
    for short, size in (("cmp", blocks), ("sel", case.num_tokens), ("win", newest)):
        shapes[f"k_{short}"] = case.rows, size, case.groups, case.d_k
        shapes[f"v_{short}"] = case.rows, size, case.groups, case.d_v
    shapes["gates"] = case.rows, case.num_queries, case.groups, 3
    size_of = dict(zip("qkv", case.magnitudes, strict=True))
    return {
        name: laid_out(normal(shape, case.seed + index, size_of.get(name[0], 1.0), dtype, device), case.layout)
        for index, (name, shape) in enumerate(shapes.items())
    }


def _masks(case: Attention) -> tuple[dict[str, Tensor], Tensor]:
    """Per branch which key [B, T, G, keys] may be read, and the slots [B, T, G, n], chosen by random scores."""
    sizes, num_tokens = case.sizes, case.num_tokens
    blocks = len(rules.compressed_blocks(num_tokens, sizes.l, sizes.d))
    shape = case.rows, case.num_queries, case.groups
    slots = torch.full((*shape, sizes.n_sel), -1)
    scores = normal((*shape, len(rules.selection_blocks(num_tokens, sizes.l_sel))), case.seed, 1.0, torch.float64)
    masks = {
        name: torch.zeros((*shape, size), dtype=torch.bool)
        for name, size in (("compressed", blocks), ("selected", num_tokens), ("sliding", num_tokens))
    }
    for query in range(case.num_queries):
        position = num_tokens - case.num_queries + query
        masks["compressed"][:, query, :, sorted(rules.visible_compressed(position, sizes.l, sizes.d))] = True
        masks["sliding"][:, query, :, sorted(rules.window(position, sizes.w))] = True
        for row in range(case.rows):
            for group in range(case.groups):
                held = rules.chosen(scores[row, query, group].tolist(), position, sizes.l_sel, sizes.n_sel)
                slots[row, query, group, : len(held)] = torch.tensor(held)
                tokens = rules.tokens_of_slots(held, position + 1, sizes.l_sel)
                masks["selected"][row, query, group, sorted(tokens or ())] = True
    return masks, slots
