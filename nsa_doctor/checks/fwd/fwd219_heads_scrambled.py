"""FWD219 heads-scrambled

Detects: heads that come out in another order than their queries went in, keys and values of one group that serve
different heads, and a head of keys or values that nobody reads.
Matters: weights trained with the right order compute something else, and half of a pair reads what the other does not.
Fix: split and join heads in one order, and repeat keys and values alike: `repeat_interleave(heads // groups)`.

Example:
    # faulty
    k, v = k.repeat_interleave(2, dim=2), v.repeat(1, 1, 2, 1)
    # correct
    k, v = k.repeat_interleave(2, dim=2), v.repeat_interleave(2, dim=2)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.head_pairing import Pairing, pairings
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    for layer in pairings(sp):
        message = next((words for words in (_out_of_order(layer), _unread(layer), _unlike(layer)) if words), "")
        if message:
            yield Finding(
                message=f"{message}: seen in what {layer[0].output} is given when the weights of one head are moved",
                where=layer[0].place,
                evidence={"output": layer[0].output, "heads": layer[0].num_heads},
                repro=command_for(subject, "FWD219"),
            )
            return


def _out_of_order(layer: Sequence[Pairing]) -> str:
    """A projection with a block for each head, of which each moves one slot, and the slots are in another order."""
    for each in layer:
        order = [next(iter(slots)) for slots in each.slots if len(slots) == 1]
        is_one_each = len(order) == len(each.slots) and len(order) % each.num_heads == 0
        parts = [order[start : start + each.num_heads] for start in range(0, len(order), each.num_heads)]
        is_whole = all(sorted(part) == list(range(each.num_heads)) for part in parts)
        if is_one_each and is_whole and any(part != sorted(part) for part in parts):
            return f"heads of {each.path} in order come out as heads {', '.join(map(str, parts[0]))}"
    return ""


def _unread(layer: Sequence[Pairing]) -> str:
    """A block that moves nothing while others of its projection share all slots among them."""
    for each in layer:
        silent = [str(index) for index, slots in enumerate(each.slots) if not slots]
        if silent and _is_partition(each):
            which = "any head" if len(silent) == len(each.slots) else f"head {', '.join(silent)}"
            return f"nothing depends on {which} of {each.path}, of {len(each.slots)}, on short sequences"
    return ""


def _unlike(layer: Sequence[Pairing]) -> str:
    """Two projections with as many heads, fewer than there are queries', that serve different slots."""
    grouped = [each for each in layer if len(each.slots) < each.num_heads and _is_partition(each)]
    for one in grouped:
        for other in grouped:
            if len(one.slots) == len(other.slots) and one.slots != other.slots:
                first, second = (sorted(each.slots[0]) for each in (one, other))
                return f"head 0 of {one.path} serves heads {first}, and that of {other.path} heads {second}"
    return ""


def _is_partition(each: Pairing) -> bool:
    return sorted(slot for slots in each.slots for slot in slots) == list(range(each.num_heads))


class _Scrambled(nn.Module):
    """Adds to a module an attention whose heads come out in another order."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def beside(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        mixed = (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flip(2).flatten(2))


def planted(subject: Subject) -> Subject:
    def build(seed: int) -> nn.Module:
        return _Scrambled(subject.build(seed), subject.width)

    def turns_heads_round(module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, _Scrambled)
        return subject.forward(module.inner, x) + module.beside(x)

    return replace(subject, build=build, forward=turns_heads_round)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD206", "NAN101"))
