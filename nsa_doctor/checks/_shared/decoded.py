"""What checks of decoding do: feed a sequence in parts, compare with one whole pass, name the module that differs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.attention.decoding import decode, differs, guilty_module
from nsa_doctor.probes.model.built_module import BuiltModule, built


def departures(
    sp: BuiltModule, code: str, length: int, sizes: Sequence[int], what: str, *, first: int = 0, rows: int = 1
) -> Iterator[Finding]:
    """At most one finding: decoding x in parts of these sizes departs, from token `first` on, from one pass over it.

    What departs in float64 must depart in the subject's own dtype too: a cache may be kept in that.
    """
    x = sp.input(length, rows)
    found = differs(sp, x, decode(sp, x, sizes), first)
    if found is None:
        return
    if sp.dtype != sp.subject.dtype:
        own = built(sp.subject)
        own.module.load_state_dict(sp.module.state_dict())
        narrow = own.input(length, rows)
        if differs(own, narrow, decode(own, narrow, sizes), first) is None:
            return
    place = guilty_module(sp, x, sizes, found.first_token)
    weights = "as the module starts" if _shows_at_start(sp, x, sizes, first) else "moved away from their start"
    yield Finding(
        message=f"{what}: {found.told} at S={length}, with weights {weights}",
        where=place if place.file else replace(place, module_class=type(sp.module).__name__),
        evidence={
            "length": length,
            "tokens": found.num_tokens,
            "first token": found.first_token,
            "error": found.error,
            "floor": found.floor,
            "weights": weights,
        },
        repro=again(sp.subject, code),
    )


def _shows_at_start(sp: BuiltModule, x: Tensor, sizes: Sequence[int], first: int) -> bool:
    """Whether it departs too with the weights that the module starts with, which a plain run of it has."""
    plain = built(sp.subject, dtype=sp.dtype, is_randomised=False)
    found = attempt(lambda: differs(plain, x, decode(plain, x, sizes), first))
    return found is not None and not isinstance(found, Caught)
