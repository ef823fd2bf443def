"""What checks of decoding do: feed a sequence in parts, compare with one whole pass, name the module that differs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.cut_rows import cut_short
from nsa_doctor.probes.attention.decoding import Decoded, decode, differs, guilty_module, require_width
from nsa_doctor.probes.attention.weights_of_ways import read_in_one
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.precision import effective_precision, noise_floor, precision_of
from nsa_doctor.subject.contract import Subject

_ROUNDINGS_OF_A_CACHE = 4.0


def departures(
    sp: BuiltModule,
    code: str,
    length: int,
    sizes: Sequence[int],
    what: str,
    *,
    rows: int = 1,
    known: Sequence[int] | None = None,
) -> Iterator[Finding]:
    """At most one finding: decoding x in parts of these sizes departs from one pass over it.

    What departs in float64 must depart in the subject's own dtype too, or by more than rounding all to that does: a
    cache may be kept in it. Where `known` sizes are given, and where rows are several, it must depart from what each
    row alone gives in those (or the same) parts too: another check finds the fault that makes both depart.
    """
    x = sp.input(length, rows)
    decoded = decode(sp, x, sizes)
    found = differs(sp, x, decoded)
    if found is None:
        return
    if (rows > 1 or known is not None) and not _departs_from(sp, x, decoded, known or sizes):
        return
    if sp.dtype != sp.subject.dtype:
        own = built(sp.subject)
        own.module.load_state_dict(sp.module.state_dict())
        narrow = own.input(length, rows)
        if differs(own, narrow, decode(own, narrow, sizes)) is None and found.error <= _rounding_to_own(sp, x):
            return
    left_out = attempt(lambda: read_in_one(sp.module, lambda: sp(x), lambda: decode(sp, x, sizes)))
    left_out = None if isinstance(left_out, Caught) else left_out
    place = narrowing(sp, x, sizes, found) or (left_out.place if left_out else None)
    place = place or rows_cut_short(sp, x, sizes) or guilty_module(sp, x, sizes, found.first_token)
    weights = "as the module starts" if _shows_at_start(sp, x, sizes) else "moved away from their start"
    yield Finding(
        message=f"{what}: {found.text} at S={length}, with weights {weights}"
        + (f"; {left_out.text}" if left_out else ""),
        where=place if place.file else replace(place, module_class=type(sp.module).__name__),
        evidence={
            "length": length,
            "tokens": found.num_tokens,
            "first token": found.first_token,
            "error": found.error,
            "floor": found.floor,
            "weights": weights,
        },
        repro=command_for(sp.subject, code),
    )


def rows_cut_short(sp: BuiltModule, x: Tensor, sizes: Sequence[int]) -> Place | None:
    """The line that keeps too few of the newest rows, with more of which decoding in these parts does not depart."""

    def run() -> Decoded:
        return decode(sp, x, sizes)

    with unobserved():
        place = attempt(lambda: cut_short(sp, run, lambda: differs(sp, x, run()) is None))
    return place if isinstance(place, Place) else None


def narrowing(sp: BuiltModule, x: Tensor, sizes: Sequence[int], found: Departure) -> Place | None:
    """Where decoding rounds to a dtype narrower than the whole pass knows, if that is what the departure is like."""
    narrow = precision_of(sp, lambda: decode(sp, x, sizes))
    with torch.no_grad():
        of_whole = effective_precision(sp, x).eps
    own = max(of_whole, torch.finfo(getattr(torch, sp.subject.dtype)).eps)
    is_rounding = narrow.eps > own and found.error <= float(noise_floor(sp, x, narrow.eps).max())
    return narrow.place if is_rounding else None


def _rounding_to_own(sp: BuiltModule, x: Tensor) -> float:
    """How far a cache that is kept in the subject's own dtype may move an output, as roundings of all weights do."""
    floor = noise_floor(sp, x, torch.finfo(getattr(torch, sp.subject.dtype)).eps)
    return _ROUNDINGS_OF_A_CACHE * float(floor.max())


def _departs_from(sp: BuiltModule, x: Tensor, decoded: Decoded, sizes: Sequence[int]) -> bool:
    """Whether a token that departs from one pass over all departs from what its row alone gives in such parts too."""
    alone = [decode(sp, row, sizes) for row in x.split(1)]
    other = torch.cat([each.output for each in alone])
    places = {token: index for index, token in enumerate(alone[0].tokens)}
    whole = baseline(sp, x)
    for here, token in enumerate(decoded.tokens):
        if (there := places.get(token)) is None:
            continue
        output, at = decoded.output[:, [here]], slice(token, token + 1)
        expected = other[:, [there]]
        if whole.departure(output, tokens=at) and whole.departure(output, tokens=at, expected=expected):
            return True
    return False


def _shows_at_start(sp: BuiltModule, x: Tensor, sizes: Sequence[int]) -> bool:
    """Whether it departs too with the weights that the module starts with, which a plain run of it has."""
    plain = built(sp.subject, dtype=sp.dtype, is_randomised=False)
    found = attempt(lambda: differs(plain, x, decode(plain, x, sizes)))
    return found is not None and not isinstance(found, Caught)


def by_steps(subject: Subject, longest: int) -> Subject:
    """The subject, whose forward pass decodes at most so many tokens one by one."""
    prefill, step = subject.prefill, subject.step
    assert prefill is not None
    assert step is not None

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        output, cache = prefill(module, x[:, :1])
        outputs = [output]
        for at in range(1, x.shape[1]):
            output, cache = step(module, x[:, at : at + 1], cache)
            require_width(output, outputs[0].shape[2:])
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    return replace(subject, forward=forward, max_length=min(longest, subject.max_length))
