"""What padding does to a loss: which tokens it has, how many there are, and targets that are to be ignored."""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.behaviour.loss_calls import Batch, LossCall
from nsa_doctor.probes.model.built_module import BuiltModule

IGNORED = -100  # torch's own index of targets that do not count
_FEW = 6  # tokens of padding more
_CLOSE = 1e-3  # of what other tokens do
_ROUNDINGS = 1e4
_EXACT = 1e-2  # of how much a mean falls by padding
_SHARES = (0.6, 1.6)  # of the padding: a mean may leave out some tokens, and a model may have fewer frames than tokens
_AS_LARGE = 0.75
_OF_PADDING = re.compile(r"(pad(ding)?_?(id|idx|index|token|token_id|value)|PAD(_ID|_IDX|_INDEX|_TOKEN|_TOKEN_ID)?)")
_IGNORING = re.compile(r"ignor|-100\b", re.IGNORECASE)


@dataclass(frozen=True)
class PaddingFault:
    """What padding does to a loss, in words, and a batch and a way to ask that show it."""

    words: str
    batch: Batch
    call: LossCall


def padding_fault(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    """What it does where it shall do nothing: the loss of rows is theirs, whatever stands behind them.

    Labels of padding are tried as each that a loss may leave out: where one does all is well.
    """
    if call.takes.keys() == {"targets"}:
        return _of_ignored(sp, call, batch)
    if not call.takes.keys() & {"lengths", "mask"}:
        return None
    asking = _Asking(sp, replace(call, of_answers=False), call.of_answers)
    if call.of_answers:
        batch = replace(batch, x=sp(batch.x))
    first: PaddingFault | None = None
    for each in _with_labels_of_padding(asking, batch):
        fault = _of_content(asking, each) or _of_amount(asking, each)
        if fault is None:
            return None
        first = first or fault
    return first


@dataclass(frozen=True)
class _Asking:
    """A loss of a built module, of its answers where it `takes_answers`."""

    sp: BuiltModule
    call: LossCall
    takes_answers: bool

    def __call__(self, batch: Batch) -> Tensor:
        return self.call(self.sp, batch)

    def noise(self, batch: Batch, length: int) -> Tensor:
        """Other tokens than the batch has: [B, length, ...], of padding alone where an id says that."""
        noise = self.sp.input(length, len(batch.x), self.sp.subject.seed + 3)
        padding = _padding_id(self.sp)
        noise = noise if padding is None or self.takes_answers else torch.full_like(noise, padding)
        return self.sp(noise) if self.takes_answers else noise

    @property
    def padding(self) -> int | None:
        """The id that says what is padding; None of answers, which have none."""
        return None if self.takes_answers else _padding_id(self.sp)


def _with_labels_of_padding(asking: _Asking, batch: Batch) -> Iterator[Batch]:
    """The batch, with each label behind a row that the loss takes and that may say what does not count."""
    if batch.targets is None or not _has_labels_of_tokens(batch):
        yield batch
        return
    padding = _padding_id(asking.sp)
    labels = dict.fromkeys((IGNORED, -1, 255, 0, *([] if padding is None else [padding])))
    served = [replace(batch, targets=batch.targets.where(batch.keep, label)) for label in labels]
    served = [each for each in served if _losses(asking, each) is not None]
    yield from served or [batch]


def _has_labels_of_tokens(batch: Batch) -> bool:
    targets = batch.targets
    return targets is not None and not targets.is_floating_point() and targets.shape == batch.x.shape[:2]


def _of_content(asking: _Asking, batch: Batch) -> PaddingFault | None:
    if asking.padding is not None:
        return None  # of tokens that are no padding by their id nothing is said
    noise = asking.noise(batch, batch.x.shape[1])
    keep = _like(batch.keep, noise)
    padded, real = (
        replace(batch, x=torch.where(keep, batch.x, noise)),
        replace(batch, x=torch.where(keep, noise, batch.x)),
    )
    if noise.is_floating_point() and not asking.takes_answers and _is_right_with_zeros(asking, batch, real):
        return None
    if _is_another(asking, batch, padded, real):
        return PaddingFault(
            f"other tokens in the padding change it by {_share(asking, batch, padded)}", padded, asking.call
        )
    if "target_lengths" not in asking.call.takes or batch.targets is None:
        return None
    kept = torch.arange(batch.targets.shape[1], device=batch.targets.device) < batch.target_lengths[:, None]
    turned = batch.targets.roll(1, 0)
    other = replace(batch, targets=torch.where(kept, batch.targets, turned))
    real = replace(batch, targets=torch.where(kept, turned, batch.targets))
    if _is_another(asking, batch, other, real):
        return PaddingFault(
            f"other targets behind a row's own change it by {_share(asking, batch, other)}", other, asking.call
        )
    return None


def _is_right_with_zeros(asking: _Asking, batch: Batch, real: Batch) -> bool:
    """Whether padding of zeros, as rows are filled up by, may be of any length: a convolution reads some of it."""
    zeros = replace(batch, x=batch.x * _like(batch.keep, batch.x))
    more = batch.x.new_zeros(len(batch.x), _FEW, *batch.x.shape[2:])
    longer = attempt(lambda: _extended(zeros, more))
    if isinstance(longer, Caught) or _losses(asking, zeros, longer) is None or "target_lengths" in asking.call.takes:
        return False
    return not _is_another(asking, zeros, longer, real)


def _of_amount(asking: _Asking, batch: Batch) -> PaddingFault | None:
    """A mean that counts padding falls as there is more of it, by as much each time; by an id it shall do nothing."""
    length = batch.x.shape[1]
    longer = [_extended(batch, asking.noise(batch, length + more)[:, length:]) for more in (_FEW, 2 * _FEW)]
    losses = _losses(asking, batch, *longer)
    if losses is None:
        return None
    plain, first, second = losses
    fall, further = plain / first - 1, plain / second - 1
    is_even = abs(further - 2 * fall) <= _EXACT * abs(fall)
    words = f"{_FEW} tokens more of padding behind {length} make it {first / plain:.3g} of itself"
    if is_even and _SHARES[0] <= fall * length / _FEW <= _SHARES[1]:
        return PaddingFault(f"its mean is taken over padding too: {words}", longer[0], asking.call)
    if asking.padding is not None:
        other = replace(batch, x=torch.where(_like(batch.keep, batch.x), batch.x.roll(1, 1), batch.x))
        if _is_another(asking, batch, longer[0], other):
            return PaddingFault(words, longer[0], asking.call)
    return None


def _of_ignored(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    """Losses of parts add up to that of the whole where all are divided by one number, though it is no sum."""
    targets, length = batch.targets, batch.x.shape[1]
    if targets is None or not _has_labels_of_tokens(batch) or not _says_what_is_ignored(sp, call):
        return None
    half = length // 2
    is_early = torch.arange(length, device=targets.device) < half
    early, late = (replace(batch, targets=targets.where(each, IGNORED)) for each in (is_early, ~is_early))
    pieces = [replace(batch, x=batch.x[:, part], targets=targets[:, part]) for part in (slice(half), slice(half, None))]
    twice = batch.rows(torch.arange(2 * len(batch.x), device=targets.device) % len(batch.x))
    losses = _losses(_Asking(sp, call, False), batch, early, late, *pieces, twice)
    if losses is None:
        return None
    whole, first, second, of_half, of_rest, of_both = losses
    is_of_one_divisor = abs(first + second - whole) <= _CLOSE * abs(whole)
    is_a_mean = abs(of_both - whole) <= _CLOSE * abs(whole) and min(of_half, of_rest) > _AS_LARGE * whole > 0
    if is_of_one_divisor and is_a_mean:
        words = f"with {length - half} of {length} targets {IGNORED} it is {first / whole:.3g} of itself"
        return PaddingFault(f"its mean is taken over ignored targets too: {words}", early, call)
    return None


def _says_what_is_ignored(sp: BuiltModule, call: LossCall) -> bool:
    """Whether the source of the module's class, or of the method, speaks of targets that are to be ignored."""
    sources = [attempt(partial(inspect.getsource, each)) for each in (type(sp.module), getattr(sp.module, call.name))]
    return any(isinstance(each, str) and _IGNORING.search(each) for each in sources)


def _losses(asking: _Asking, *batches: Batch) -> list[float] | None:
    """The loss of each batch; None where it is not of some, or is zero."""
    losses = []
    for each in batches:
        loss = attempt(partial(asking, each))
        if isinstance(loss, Caught) or not bool(loss.isfinite()) or not bool(loss):
            return None
        losses.append(float(loss))
    return losses


def _extended(batch: Batch, more: Tensor) -> Batch:
    """The batch with more padding, behind the label that its padding has."""
    targets = batch.targets
    if targets is not None and targets.shape[:2] == batch.x.shape[:2]:
        last = targets[batch.lengths.argmin(), -1]  # of padding
        behind = last.expand(len(more), more.shape[1], *targets.shape[2:])
        targets = torch.cat((targets, behind), 1)
    return replace(batch, x=torch.cat((batch.x, more), 1), targets=targets)


def _padding_id(sp: BuiltModule) -> int | None:
    """Of a model of tokens the id that it, its configuration or its file takes for padding."""
    if sp.subject.input != "tokens":
        return None
    kind = type(sp.module)
    holders = [sp.module, *(getattr(sp.module, name, None) for name in ("config", "cfg", "args"))]
    owned = [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in holders]
    owned += [vars(each) for each in (*kind.__mro__, *filter(None, [sys.modules.get(kind.__module__)]))]
    named = [value for each in owned for name, value in each.items() if _OF_PADDING.fullmatch(str(name))]
    ids = [each.padding_idx for each in sp.module.modules() if isinstance(each, nn.Embedding)]
    return next((each for each in (*ids, *named) if type(each) is int and 0 <= each < sp.subject.width), None)


def _is_another(asking: _Asking, plain: Batch, changed: Batch, real: Batch) -> bool:
    """Whether the change is more than some of what other tokens do, and than rounding."""
    loss, other, due = (asking(each) for each in (plain, changed, real))
    rounding = _ROUNDINGS * torch.finfo(getattr(torch, asking.sp.dtype)).eps * float(loss.abs())
    return bool((other - loss).abs() > max(_CLOSE * float((due - loss).abs()), rounding))


def _share(asking: _Asking, batch: Batch, other: Batch) -> str:
    plain, changed = float(asking(batch)), float(asking(other))
    return f"{abs(changed - plain) / abs(plain):.2g} of itself" if plain else f"{changed:.3g}"


def _like(keep: Tensor, x: Tensor) -> Tensor:
    return keep.reshape(*keep.shape, *[1] * (x.dim() - 2))
