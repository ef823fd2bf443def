"""A subject's oracle, and which part of the subject differs from its own equation."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.agreement import Worst, worst_token
from nsa_doctor.probes.attention.equations import branch_outputs, finite_difference, mixed
from nsa_doctor.probes.attention.reach import anatomy
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built, require_finite
from nsa_doctor.probes.model.state import cast
from nsa_doctor.probes.numerics.precision import finest_precision, noise_floor
from nsa_doctor.probes.tensors.tolerance import largest
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_MOST_SCORES = {"smoke": 1 << 18, "quick": 1 << 22, "full": 1 << 25}  # an oracle may hold S x S scores per head
_DEFAULT_LENGTHS = (33, 80)
_HEAD_SIZE = 64
_ROUNDING = 1 << 12  # units in the last place, far above what sums of some thousand terms lose


def lengths_to_compare(subject: Subject) -> list[int]:
    """Lengths at which there is something to see and which an oracle can be asked for, ascending."""
    try:
        lengths = rules_of(subject).telling_lengths(subject.max_length)
    except NotApplicableError:
        lengths = [min(length, subject.max_length) for length in _DEFAULT_LENGTHS]
    heads = max(1, subject.width // _HEAD_SIZE) if subject.input == "embeddings" else 1
    fitting = [length for length in lengths if length * length * heads <= _MOST_SCORES[subject.profile]]
    fitting = fitting or lengths[:1]
    return fitting if subject.profile == "full" else sorted({fitting[len(fitting) // 2], fitting[-1]})


def disagreement(
    sp: BuiltModule, wide: BuiltModule, length: int, twin: BuiltModule | None = None
) -> tuple[Worst | None, Tensor]:
    """Where the output (a twin's, when one is given) is not the oracle's, and the input.

    `wide` holds the same weights in the widest dtype.

    The bound is what rounding moves the subject by, plus twice what computing in its dtype costs the oracle. A token
    that chooses other blocks in this dtype than in the widest has nothing to be compared with.
    """
    oracle, x = sp.subject.oracle, sp.input(length)
    assert oracle is not None
    with torch.no_grad():
        output = require_finite((twin or sp)(x), length)
        truth = ask("the oracle", lambda: oracle(wide.module, x.to(_dtype(wide, x))), wide.module)
        eps = finest_precision(sp, x).eps
        # Sums in another order: as `probes/tolerance.py` derives it, for sums as long as a row of scores or of weights.
        sums = math.sqrt(max(length, truth.shape[-1], x.shape[-1])) * eps * largest(truth)
        floor = noise_floor(sp, x, eps) + sums
        if sp is not wide:
            plain = ask("the oracle", lambda: oracle(sp.module, x.clone()), sp.module)
            floor = floor + 2 * finite_difference(plain, truth)
            floor = floor.masked_fill(_choose_differently(sp, wide, x), torch.inf)
    return worst_token(output, truth, floor), x


def twins_of(subject: Subject, sp: BuiltModule) -> Iterator[tuple[str, BuiltModule, BuiltModule, BuiltModule]]:
    """Each other implementation by name: the subject in the dtype it is compared in, in the widest, and the twin.

    That is the dtype of `sp`, the widest, where the implementation can serve in it, and else the subject's own. All
    have the same weights.
    """
    compared: set[str] = set()
    for dtype in dict.fromkeys((sp.dtype, subject.dtype)):
        twins = {} if subject.twins is None else subject.twins(subject.device, dtype)
        makers = {name: make for name, make in twins.items() if name not in compared}
        if not makers:
            continue
        own = sp if dtype == sp.dtype else built(subject)
        wide = with_weights_of(own, sp)
        for name, make in makers.items():
            build = lambda seed, make=make, dtype=dtype: cast(make(seed), getattr(torch, dtype))  # noqa: E731
            yield name, own, wide, with_weights_of(own, built(replace(subject, build=build), dtype=dtype))
        compared |= makers.keys()


def with_weights_of(sp: BuiltModule, wide: BuiltModule) -> BuiltModule:
    """`wide`, its module given the weights of `sp`, exactly."""
    wide.module.load_state_dict(sp.module.state_dict())
    return wide


def _choose_differently(sp: BuiltModule, wide: BuiltModule, x: Tensor) -> Tensor:
    """[B, S]: whether the choice hangs on rounding; nowhere, for a subject that does not show what it chooses."""
    choose = sp.subject.choose
    if choose is None:
        return torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    narrow, _ = ask("choose", lambda: choose(sp.module, x.clone()), sp.module)
    exact, _ = ask("choose", lambda: choose(wide.module, x.to(_dtype(wide, x))), wide.module)
    return (narrow != exact).flatten(2).any(-1)


def _dtype(sp: BuiltModule, x: Tensor) -> torch.dtype:
    return getattr(torch, sp.dtype) if x.is_floating_point() else x.dtype


def differing_part(sp: BuiltModule, x: Tensor) -> tuple[str, Place | None]:
    """The first branch that is not what its equation gives, in words, and where it is computed.

    Empty words and None where the subject does not show its inner parts.
    """
    subject = sp.subject
    if subject.anatomy is None:
        return "", None
    try:
        rules = rules_of(subject)
    except NotApplicableError:
        return "", None
    with torch.no_grad():
        inner = anatomy(sp, x)
        due = branch_outputs(inner, rules, inner["slots"])
        due["gated"] = mixed(inner, inner["gates"])
    eps = torch.finfo(inner["q"].dtype).eps
    for name in ("compressed", "selected", "sliding", "gated"):
        floor = _ROUNDING * eps * due[name].abs().flatten(2).amax(-1) + eps
        if worst_token(inner[name], due[name], floor) is not None:
            what = "the gated mix" if name == "gated" else f"the {name} branch"
            return f"; {what} differs from its equation", origin(subject, sp.module, lambda: anatomy(sp, x), name)
    chosen = branch_outputs(inner, rules)["selected"]
    if worst_token(inner["selected"], chosen, _ROUNDING * eps * chosen.abs().flatten(2).amax(-1) + eps) is not None:
        return "; the choice of blocks differs", origin(subject, sp.module, lambda: anatomy(sp, x), "slots")
    return "; every branch does what its equation says with what it is given", None
