"""What padding does to a loss: which tokens it has, how many there are, and targets that are to be ignored."""

import re
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
_OF_PADDING = re.compile(r"pad(ding)?_?(id|idx|index|token|token_id|value)?")


@dataclass(frozen=True)
class PaddingFault:
    """What padding does to a loss, in words, and a batch that shows it."""

    words: str
    batch: Batch


def padding_fault(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    """What it does where it shall do nothing: the loss of rows is theirs, whatever stands behind them."""
    if call.takes.keys() & {"lengths", "mask"}:
        ignoring = _ignoring_padding(sp, call, batch)
        return _of_content(sp, call, ignoring) or _of_amount(sp, call, ignoring)
    return _of_ignored(sp, call, batch) if call.takes.keys() == {"targets"} else None


def _ignoring_padding(sp: BuiltModule, call: LossCall, batch: Batch) -> Batch:
    """The batch, whose labels of padding are to be ignored where the loss takes such: they may say what counts."""
    if not _has_labels_of_tokens(batch):
        return batch
    assert batch.targets is not None
    ignoring = replace(batch, targets=batch.targets.where(batch.keep, IGNORED))
    return batch if _losses(sp, call, ignoring) is None else ignoring


def _has_labels_of_tokens(batch: Batch) -> bool:
    targets = batch.targets
    return targets is not None and not targets.is_floating_point() and targets.shape == batch.x.shape[:2]


def _of_content(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    if _padding_id(sp) is not None:
        return None  # of tokens that are no padding by their id nothing is said
    noise = _noise(sp, batch, batch.x.shape[1])
    padded = replace(batch, x=torch.where(_like(batch.keep, noise), batch.x, noise))
    real = replace(batch, x=torch.where(_like(batch.keep, noise), noise, batch.x))
    if _is_another(sp, *(call(sp, each) for each in (batch, padded, real))):
        return PaddingFault(f"other tokens in the padding change it by {_share(sp, call, batch, padded)}", padded)
    if "target_lengths" not in call.takes or batch.targets is None:
        return None
    kept = torch.arange(batch.targets.shape[1], device=batch.targets.device) < batch.target_lengths[:, None]
    turned = batch.targets.roll(1, 0)
    other = replace(batch, targets=torch.where(kept, batch.targets, turned))
    real = replace(batch, targets=torch.where(kept, turned, batch.targets))
    if _is_another(sp, *(call(sp, each) for each in (batch, other, real))):
        return PaddingFault(f"other targets behind those of a row change it by {_share(sp, call, batch, other)}", other)
    return None


def _of_amount(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    """A mean that counts padding falls as there is more of it, by as much each time."""
    length = batch.x.shape[1]
    longer = [_longer(sp, batch, length + more) for more in (_FEW, 2 * _FEW)]
    losses = _losses(sp, call, batch, *longer)
    if losses is None:
        return None
    plain, first, second = losses
    fall, further = plain / first - 1, plain / second - 1
    is_even = abs(further - 2 * fall) <= _EXACT * abs(fall)
    if is_even and _SHARES[0] <= fall * length / _FEW <= _SHARES[1]:
        words = f"{_FEW} tokens more of padding behind {length} make it {first / plain:.3g} of itself"
        return PaddingFault(f"its mean is taken over padding too: {words}", longer[0])
    return None


def _of_ignored(sp: BuiltModule, call: LossCall, batch: Batch) -> PaddingFault | None:
    """Losses of parts add up to that of the whole where all are divided by one number, though it is no sum."""
    targets, length = batch.targets, batch.x.shape[1]
    if targets is None or not _has_labels_of_tokens(batch):
        return None
    half = length // 2
    is_early = torch.arange(length, device=targets.device) < half
    early, late = (replace(batch, targets=targets.where(each, IGNORED)) for each in (is_early, ~is_early))
    short = replace(batch, x=batch.x[:, :half], targets=targets[:, :half])
    twice = batch.rows(torch.arange(2 * len(batch.x), device=targets.device) % len(batch.x))
    losses = _losses(sp, call, batch, early, late, short, twice)
    if losses is None:
        return None
    whole, first, second, of_half, of_both = losses
    is_of_one_divisor = abs(first + second - whole) <= _CLOSE * abs(whole)
    is_a_mean = abs(of_both - whole) <= _CLOSE * abs(whole) and of_half > _AS_LARGE * whole > 0
    if is_of_one_divisor and is_a_mean:
        words = f"with {length - half} of {length} targets {IGNORED} it is {first / whole:.3g} of itself"
        return PaddingFault(f"its mean is taken over ignored targets too: {words}", early)
    return None


def _losses(sp: BuiltModule, call: LossCall, *batches: Batch) -> list[float] | None:
    """The loss of each batch; None where it is not of some, or is zero."""
    losses = []
    for each in batches:
        loss = attempt(partial(call, sp, each))
        if isinstance(loss, Caught) or not bool(loss.isfinite()) or not bool(loss):
            return None
        losses.append(float(loss))
    return losses


def _noise(sp: BuiltModule, batch: Batch, length: int) -> Tensor:
    """Other tokens than the batch has: [B, length, ...], of padding alone where an id says that."""
    noise = sp.input(length, len(batch.x), sp.subject.seed + 3)
    padding = _padding_id(sp)
    return noise if padding is None else torch.full_like(noise, padding)


def _longer(sp: BuiltModule, batch: Batch, length: int) -> Batch:
    more = _noise(sp, batch, length)[:, batch.x.shape[1] :]
    targets = batch.targets
    if targets is not None and targets.shape[:2] == batch.x.shape[:2]:
        is_ignoring = _has_labels_of_tokens(batch) and bool((targets == IGNORED).any())
        first = targets.new_full((1, 1), IGNORED) if is_ignoring else targets[:, :1]
        behind = first.expand(len(more), more.shape[1], *targets.shape[2:])
        targets = torch.cat((targets, behind), 1)
    return replace(batch, x=torch.cat((batch.x, more), 1), targets=targets)


def _padding_id(sp: BuiltModule) -> int | None:
    """Of a model of tokens the id that it takes for padding."""
    if sp.subject.input != "tokens":
        return None
    holders = [sp.module, *(getattr(sp.module, name, None) for name in ("config", "cfg", "args"))]
    owned = [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in holders]
    named = [value for each in owned for name, value in each.items() if _OF_PADDING.fullmatch(str(name))]
    ids = [each.padding_idx for each in sp.module.modules() if isinstance(each, nn.Embedding)]
    return next((each for each in (*named, *ids) if type(each) is int), None)


def _is_another(sp: BuiltModule, plain: Tensor, changed: Tensor, real: Tensor) -> bool:
    rounding = _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * float(plain.abs())
    return bool((changed - plain).abs() > max(_CLOSE * float((real - plain).abs()), rounding))


def _share(sp: BuiltModule, call: LossCall, batch: Batch, other: Batch) -> str:
    plain, changed = float(call(sp, batch)), float(call(sp, other))
    return f"{abs(changed - plain) / abs(plain):.2g} of itself" if plain else f"{changed:.3g}"


def _like(keep: Tensor, x: Tensor) -> Tensor:
    return keep.reshape(*keep.shape, *[1] * (x.dim() - 2))
