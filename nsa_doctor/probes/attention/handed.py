"""Calls of a subject's seams with tensors that stay the caller's, to see what becomes of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.attention.choice import made_up
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.heads import heads
from nsa_doctor.subject.geometry_rules import Rules, rules_of

_LENGTHS = (18, 1, 33)  # of packed sequences
_HIDDEN = 2  # tokens of padding


@dataclass(frozen=True)
class Handed:
    """One call: `call(*given.values())` asks the seam `name`, with tensors that nothing else holds."""

    name: str
    given: Mapping[str, Tensor]
    call: Callable[..., object]

    @property
    def length(self) -> int:
        """How many tokens it is about."""
        return next(iter(self.given.values())).shape[1]


def handed(sp: BuiltModule, length: int) -> Iterator[Handed]:
    """A call of forward, and of every other seam that takes a tensor which its caller goes on using.

    Slots have empty ones among them, and are int64 as those chosen are: a conversion would be a copy.
    """
    subject, module = sp.subject, sp.module
    yield Handed("forward", {"the input": sp.input(length)}, sp.call)
    yield from _handed_more(sp, length)
    packed, select, attend = subject.packed, subject.select, subject.attend
    if packed is not None:
        cu_seqlens = torch.tensor([0, *accumulate(_LENGTHS)], dtype=torch.int32, device=subject.device)
        given = {"the input": sp.input(sum(_LENGTHS)), "cu_seqlens": cu_seqlens}
        yield Handed("packed", given, lambda x, offsets: ask("packed", lambda: packed(module, x, offsets), module))
    rules = _rules(sp)
    if rules is None:
        return
    num_tokens = 2 * rules.l_sel + rules.d + 1
    importance = made_up(rules, num_tokens, 0, subject.seed)
    if select is not None:
        yield Handed(
            "select", {"importance": importance}, lambda given: ask("select", lambda: select(given, 0), module)
        )
    if attend is not None:
        q, k, v = heads(subject.seed, num_tokens)
        given = {"q": q, "k": k, "v": v, "slots": _slots(rules, importance)}
        yield Handed("attend", given, lambda *own: ask("attend", lambda: attend(*own), module))


def _handed_more(sp: BuiltModule, length: int) -> Iterator[Handed]:
    """Calls with a mask of padding, with tokens to decode, and with ids as labels."""
    subject, module, x = sp.subject, sp.module, sp.input(length)
    padded, prefill, loss = subject.padded, subject.prefill, subject.loss
    if padded is not None and length > _HIDDEN:
        keep = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        keep[:, -_HIDDEN:] = 0
        given = {"the input": x, "the mask": keep}
        yield Handed("padded", given, lambda x, keep: ask("padded", lambda: padded(module, x, keep), module))
    if prefill is not None:
        yield Handed("prefill", {"the input": x}, lambda x: ask("prefill", lambda: prefill(module, x), module))
    if loss is not None:
        yield Handed("loss", {"the ids": x}, lambda x: ask("loss", lambda: loss(module, x), module))


def _rules(sp: BuiltModule) -> Rules | None:
    try:
        return rules_of(sp.subject)
    except NotApplicableError:
        return None


def _slots(rules: Rules, importance: Tensor) -> Tensor:
    """[B, T, G, n]: what each query has to choose, ascending, -1 last."""
    chosen = [
        [[rules.best(scores, t) for scores in groups] for t, groups in enumerate(row)] for row in importance.tolist()
    ]
    return torch.tensor([[[own + [-1] * (rules.n_sel - len(own)) for own in query] for query in row] for row in chosen])
