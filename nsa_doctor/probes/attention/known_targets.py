"""Cross-entropies of a loss whose targets are tokens that its logits were made from: nothing is left to predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_SHIFTS = range(-1, 8)
_MOST = 0.9  # of the targets, that have to be tokens at one distance
_SHARE = 1e-3  # of the largest change of logits


@dataclass(frozen=True)
class KnownTargets:
    """A cross-entropy at position t of the token at t + `shift`, of logits that depend on the token at t + `read`.

    Where it `wraps`, the first tokens follow the last ones.
    """

    shift: int
    read: int
    wraps: bool
    place: Place


@dataclass(frozen=True)
class _Entropy:
    """What a cross-entropy was given, and the gradient of the whole loss by the logits."""

    logits: Tensor
    targets: Tensor
    place: Place
    gradient: Tensor | None = None


def known_targets(sp: BuiltModule, ids: Tensor) -> Iterator[KnownTargets]:
    """Of the subject's own loss of these ids [B, S]: each cross-entropy that asks for what its logits have read.

    One of an answer of its own to each token may ask for that token: it is a reconstruction.
    """
    place, other = ids.shape[1] // 2, ids.clone()
    other[:, place] = 1 + ids[:, place] % max(1, sp.subject.width - 2)
    seed_everything(sp.subject.seed)
    with torch.no_grad():
        answer = sp(ids).double()
    for one, changed in zip(_entropies(sp, ids), _entropies(sp, other), strict=False):
        shift, logits = _shift(one.targets, ids), _by_token(one.logits, ids)
        beside = _by_token(changed.logits, ids)
        gradient = None if one.gradient is None else _by_token(one.gradient, ids)
        if shift is None or logits is None or beside is None or gradient is None or logits.shape != beside.shape:
            continue
        if shift < 1 and not (logits.shape == answer.shape and torch.allclose(logits, answer, rtol=1e-4)):
            continue
        difference = (logits - beside).abs().flatten(2).amax(-1).amax(0)
        read = difference > _SHARE * difference.max()
        wraps = _wraps(one.targets, ids, shift) and bool((gradient[:, -shift:] != 0).any())
        asks = place - shift
        is_asked = 0 <= asks < len(read) and bool((gradient[:, asks] != 0).any())
        if wraps or (is_asked and bool(read[asks])):
            yield KnownTargets(shift, place - int(read.nonzero()[0, 0]), wraps, one.place)


def _entropies(sp: BuiltModule, ids: Tensor) -> list[_Entropy]:
    loss = sp.subject.loss
    assert loss is not None
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Entropies(places)
    seed_everything(sp.subject.seed)
    with preserved_state(), torch.enable_grad(), uncompiled():
        with watch:
            value = ask("the loss", lambda: loss(sp.module, ids.clone()), sp.module)
        wanted = [each.logits for each in watch.found if each.logits.requires_grad]
        has_gradient = bool(wanted) and isinstance(value, Tensor) and value.requires_grad
        found = torch.autograd.grad(value.sum(), wanted, allow_unused=True) if has_gradient else ()
        gradients = dict(zip(map(id, wanted), found, strict=False))
    return [
        _Entropy(each.logits.detach().double(), each.targets, each.place, gradients.get(id(each.logits)))
        for each in watch.found
    ]


class _Entropies(TorchFunctionMode):
    """Keeps what each cross-entropy is given; a function mode is a base class by torch's design."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: list[_Entropy] = []
        self._places = places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function behind a look at its arguments."""
        given = kwargs or {}
        if getattr(func, "__name__", "") == "cross_entropy":
            logits = args[0] if args else given.get("input")
            targets = args[1] if len(args) > 1 else given.get("target")
            if isinstance(logits, Tensor) and isinstance(targets, Tensor) and not targets.is_floating_point():
                place = self._places.here()[0]
                self.found.append(_Entropy(logits, targets.detach().clone(), place))
        return func(*args, **given)


def _by_token(logits: Tensor, ids: Tensor) -> Tensor | None:
    """[B, T, V] of [B * T, V] or [B, V, T]; None of any other shape."""
    if logits.ndim == 2 and len(logits) % len(ids) == 0:
        return logits.unflatten(0, (len(ids), -1))
    is_batch = logits.ndim == 3 and len(logits) == len(ids)
    return logits.mT if is_batch else None


def _shift(targets: Tensor, ids: Tensor) -> int | None:
    """How far behind its position each target lies in the ids, but for those that are left out; None where unlike."""
    if targets.numel() % len(ids):
        return None
    rows = targets.reshape(len(ids), -1)
    for shift in _SHIFTS:
        begin, end = max(0, -shift), min(rows.shape[1], ids.shape[1] - shift)
        if end - begin < 1:
            continue
        part, due = rows[:, begin:end], ids[:, begin + shift : end + shift]
        counted = part >= 0
        if int(counted.sum()) >= _MOST * part.numel() and bool((part == due)[counted].all()):
            return shift
    return None


def _wraps(targets: Tensor, ids: Tensor, shift: int) -> bool:
    """Whether the last targets are the first ids."""
    rows = targets.reshape(len(ids), -1)
    return shift > 0 and rows.shape == ids.shape and torch.equal(rows[:, -shift:], ids[:, :shift])
