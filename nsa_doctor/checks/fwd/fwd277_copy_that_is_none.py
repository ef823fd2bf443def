"""FWD277 copy-that-is-none

Detects: a function of the subject's own files that writes into what its caller gave, through an expression that looks
    like a copy and is none: `rows = rows.contiguous()` (of one that is contiguous), `.to(dtype)`, `.float()` (of one of
    that dtype), `.reshape(...)`, `.detach()`, a slice, `np.asarray`, another name for it. By its source, and by a call
    with small tensors where it takes tensors alone. Functions that say that they write in place, by their name, an
    argument or a remark, and arguments such as `cache` and `out`, are left alone, and so is what the callers there are
    have no more use for.
Matters: the caller's data is not what it was: an epoch, a second sample or a metric starts from another value.
Fix: `.clone()` before the first write, or `torch.where` in place of it.

Example:
    # faulty
    rows = rows.contiguous()
    rows[:, 0] = 0
    # correct
    rows = rows.clone()
    rows[:, 0] = 0
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from nsa_doctor.checks._shared.around import Around
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.copies_that_are_none import copies_that_are_none
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject)
    for each in copies_that_are_none(sp):
        yield Finding(
            message=f"in {each.place.function}, {each.what}",
            where=in_subject(each.place, sp.module),
            evidence={"argument": each.argument},
            repro=command_for(subject, "FWD277"),
        )


def planted(subject: Subject) -> Subject:
    class Blanked(Around):
        """The subject, beside a helper."""

        def blanked(self, rows: Tensor) -> Tensor:
            """The first token is 0; what is given is left as it is."""
            rows = rows.contiguous()
            rows[:, 0] = 0
            return rows

    return replace(subject, build=lambda _seed: Blanked(subject), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), explained_by=("FWD208",))
