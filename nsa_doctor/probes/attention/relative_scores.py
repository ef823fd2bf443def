"""Scores that what is named after relative positions makes of where equal tokens stand, and not of their distance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.relative_reads import relative_tensors
from nsa_doctor.probes.attention.score_watch import MASKED, Softmax, softmaxes
from nsa_doctor.probes.attention.stationary import Rotation, Stray, repeats_somewhere, strays
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_APART = 8  # tokens before all and behind that may stand apart, as one of a class
_TIMES = (0.0, 2.0, 3.0)
_FEWEST = 24  # tokens without those


def relative_strays(sp: BuiltModule, x: Tensor, turned: Rotation) -> Iterator[tuple[Place, Stray]]:
    """Where scores of equal tokens `x` follow from places, for what is named relative and is added to them alone.

    What repeats along the sequence, once each row of an image, say, is one of distances; so is, for all that is known,
    what scores each token's own key alike and strays on both sides of it, as in a tree.
    """
    named = relative_tensors(sp.module)
    length, tolerance = x.shape[1], turned.tolerance(x.shape[1])
    if not named or length < _FEWEST + 2 * _APART:
        return
    found = softmaxes(sp, x)[0]
    wrong = {
        index: (each.place, stray)
        for index, each in enumerate(found)
        if (scores := each.of_tokens(length)) is not None and (stray := _stray(scores, tolerance)) is not None
    }
    if not wrong:
        return
    scaled = [_scores(sp, x, named, times) for times in _TIMES]
    for index, (place, stray) in wrong.items():
        plain = [None if every is None or len(every) <= index else every[index] for every in (*scaled, found)]
        asked = [None if each is None else each.of_tokens(length) for each in plain]
        seen = [each for each in asked if each is not None]
        if len(seen) < len(asked):
            continue
        none, twice, thrice, once = seen
        if strays(none, tolerance) is None and _is_added(none, once, twice, thrice, tolerance):
            yield _making(sp, x, tolerance) or place, stray


def _scores(sp: BuiltModule, x: Tensor, named: Sequence[Tensor], times: float) -> list[Softmax] | None:
    """What the softmaxes of a pass are given where all that is named relative is so many times what it is."""
    with _multiplied(named, times), unobserved():
        found = attempt(lambda: softmaxes(sp, x)[0])
    return None if isinstance(found, Caught) else found


def _is_added(none: Tensor, once: Tensor, twice: Tensor, thrice: Tensor, tolerance: float) -> bool:
    """Whether the scores are sums and products of what is named relative, and not what layers made of it before."""
    is_seen = torch.isfinite(thrice) & (thrice > MASKED) & torch.isfinite(none)
    off = (thrice - none) - 3 * (twice - none) + 3 * (once - none)
    return bool(off[is_seen].abs().max() <= tolerance * thrice[is_seen].abs().max())


def _stray(scores: Tensor, tolerance: float) -> Stray | None:
    stray = strays(scores, tolerance)
    if stray is None:
        return None
    inner = scores[..., _APART:-_APART, _APART:-_APART]
    if strays(inner, tolerance) is None or repeats_somewhere(inner, tolerance):
        return None
    own = inner.diagonal(dim1=-2, dim2=-1)
    largest = inner[inner.isfinite() & (inner > MASKED)].abs().max()
    is_own_alike = bool((own - own[..., :1]).abs().max() <= tolerance * largest)
    seen = torch.ones_like(inner, dtype=torch.bool).tril()
    sides = (inner.masked_fill(~side, -torch.inf) for side in (seen, seen.mT))
    is_of_one = any(repeats_somewhere(each, tolerance) for each in sides)
    return stray if not is_own_alike or is_of_one else None


@contextmanager
def _multiplied(tensors: Sequence[Tensor], times: float) -> Iterator[None]:
    kept = [each.detach().clone() for each in tensors]
    try:
        with torch.no_grad():
            for each in tensors:
                each.mul_(times)
        yield
    finally:
        with torch.no_grad():
            for each, own in zip(tensors, kept, strict=True):
                each.copy_(own)


def _making(sp: BuiltModule, x: Tensor, tolerance: float) -> Place | None:
    """The line that makes the first such scores; None where it is not seen."""
    watch = _Making(sp, x.shape[1], tolerance)
    with torch.no_grad(), unobserved(), sdpa_kernel(SDPBackend.MATH), watch.places.watching(), watch:
        attempt(lambda: sp(x))
    return watch.found or watch.found_alike


class _Making(DispatchWatcher):
    """Looks for the first scores of the subject's own lines that follow from places.

    Apart from those that are one row for all queries, which may be of distances that a shift is still to come for.
    """

    def __init__(self, sp: BuiltModule, length: int, tolerance: float) -> None:
        super().__init__()
        self.found: Place | None = None
        self.found_alike: Place | None = None
        self.places = Places(FrameFilter(sp.subject.packages))
        self.places.know(sp.module)
        self._length, self._tolerance = length, tolerance

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; keep its place where its result is the first."""
        result = func(*args, **kwargs)
        if self.found is None:
            with untraced():
                wrong = next((each for each in tensors_in(result) if self._is_wrong(each)), None)
                place = None if wrong is None else self.places.here()[0]
                if wrong is not None and place is not None and place.file:
                    self._keep(wrong, place)
        return result

    def _keep(self, scores: Tensor, place: Place) -> None:
        apart = (scores - scores[..., :1, :]).abs().max()
        if bool(apart <= self._tolerance * scores.abs().max()):
            self.found_alike = self.found_alike or place
        else:
            self.found = place

    def _is_wrong(self, tensor: Tensor) -> bool:
        is_of_scores = tensor.ndim > 2 and tensor.shape[-2:] == (self._length, self._length)
        return is_of_scores and tensor.is_floating_point() and _stray(tensor.detach(), self._tolerance) is not None
