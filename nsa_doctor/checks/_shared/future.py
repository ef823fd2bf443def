"""Where other later tokens change an output before them: FWD201's question, asked either way."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.checks._shared.compared import cuts_of, long_length, middle_lengths, odd_lengths
from nsa_doctor.checks._shared.other_rows import with_norms_of_eval
from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import ascending, begun_again, values_to_try, with_values
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline, with_other_future
from nsa_doctor.subject.contract import Subject

_NUM_CUTS: dict[Profile, int] = {"smoke": 3, "quick": 5, "full": 9}
_LARGE = 30.0
HALF = "bfloat16"
_LOUD = 0.1  # of the largest output
_PART, _SHARES = 0.1, (0.03, 0.5)  # of a change, and between which shares of its effect that may have


@dataclass(frozen=True)
class Plan:
    """A length, where to cut it, and `scale` times as large values behind the cut: padding where that is 0.

    Where it `begins_again`, the last token alone is another: the first one again, of tokens that ascend where it is
    ids that are given. The input may be of a kind of `values` that is no ordinary one.
    """

    length: int
    num_cuts: int
    mode: Mode = "eval"
    scale: float = 1.0
    begins_again: bool = False
    values: str = ""

    @property
    def words(self) -> str:
        """What is changed, in words before the number of the first token changed."""
        if self.begins_again:
            return "the first token again in the place of "
        return {1.0: "", 0.0: "zeros in "}.get(self.scale, "large values in ")

    def module(self, subject: Subject) -> BuiltModule:
        """What is called: the subject behind these values, norms by the batch as they are meant to be in eval()."""
        return with_norms_of_eval(with_values(subject, self.values), self.mode)

    def inputs(self, sp: BuiltModule, cut: int) -> tuple[Tensor, Tensor]:
        """The input, and one that is another from the cut on."""
        x = sp.input(self.length)
        if not self.begins_again:
            return x, with_other_future(sp, x, cut, self.scale)
        x = x if x.is_floating_point() else ascending(x, sp.subject.width)
        return x, begun_again(x)

    def cuts(self) -> Sequence[int]:
        """Where to cut."""
        return (self.length - 1,) if self.begins_again else cuts_of(self.length, self.num_cuts)


@dataclass(frozen=True)
class HalfLeak:
    """A cut behind which other values change what comes before it in half precision, by how much beside its size."""

    built: BuiltModule
    x: Tensor
    other: Tensor
    cut: int
    change: float
    size: float


def half_leak(subject: Subject) -> HalfLeak | None:
    """What the future changes in bfloat16; None where nothing, or where the subject does not run in it.

    Rounding may carry it too, of sums that cancel: a part of a change then does about the same, or nothing, where
    what comes through does in proportion. Ids of tokens have no part of a change, and are not looked at.
    """
    if subject.is_slow or "eval" not in subject.modes or subject.input != "embeddings":
        return None
    found = attempt(lambda: _half_leak(subject))
    return None if isinstance(found, Caught) else found


def _half_leak(subject: Subject) -> HalfLeak | None:
    sp = built(subject, dtype=HALF)
    for length in odd_lengths(subject):
        x, cut = sp.input(length), length // 2
        if not cut:
            continue
        other = with_other_future(sp, x, cut, 1.0)
        with torch.no_grad():
            plain, changed, partly = (sp(each).double()[:, :cut] for each in (x, other, x.lerp(other, _PART)))
        size, change, part = (float(each.abs().max()) for each in (plain, changed - plain, partly - plain))
        if change > _LOUD * size and _SHARES[0] * change <= part <= _SHARES[1] * change:
            return HalfLeak(sp, x, other, cut, change, size)
    return None


def plans(subject: Subject) -> list[Plan]:
    """What to try, the cheapest first."""
    if subject.is_slow:
        mode: Mode = "eval" if "eval" in subject.modes else subject.modes[0]
        return [Plan(length, 2, mode) for length in odd_lengths(subject)[:1] if length > 1]
    found = [Plan(length, _NUM_CUTS[subject.profile]) for length in odd_lengths(subject)]
    found += [Plan(found[0].length, 3, scale=_LARGE), Plan(found[0].length, 3, "train")]
    found += [Plan(found[0].length, 3, scale=0.0)]
    whole = found[0].length if subject.input == "embeddings" else min(found[0].length, subject.width)
    found += [Plan(whole, 1, begins_again=True)]
    found += [Plan(found[0].length, 2, values=kind) for kind in values_to_try(subject)]
    found += [Plan(length, 2) for length in middle_lengths(subject)]
    found += [Plan(length, 2, "train") for length in middle_lengths(subject)[1:2]]
    found += [Plan(length, 2) for length in long_length(subject)]
    if subject.profile == "full":
        found += [Plan(subject.max_length, 3, "train")]
    return [plan for plan in found if plan.length > 1 and plan.mode in subject.modes]


def leak(subject: Subject, plan: Plan) -> tuple[int, Departure | None]:
    """The first cut behind which other values change what comes before it, and how."""
    sp = plan.module(subject)
    base: Baseline | None = None
    for cut in plan.cuts():
        x, other = plan.inputs(sp, cut)
        base = base or baseline(sp, x)
        with torch.no_grad():
            changed = sp(other)
        found = base.departure(changed[:, :cut], tokens=slice(cut), loudness=max(1.0, plan.scale), given=other)
        if found is not None:
            return cut, found
    return plan.length, None
