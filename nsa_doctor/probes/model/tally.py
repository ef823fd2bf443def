"""How a subject was called: how often, at which lengths, in which dtypes and modes, and with which seeds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject

_COUNTED = ("forward", "prefill", "step", "packed", "loss", "train_step", "generate")


@dataclass
class Tally:
    """Grows with every call of the subject that `tallied` made of another one."""

    calls: int = 0
    lengths: set[int] = field(default_factory=set)
    batch_sizes: set[int] = field(default_factory=set)
    seeds: set[int] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    modes: set[str] = field(default_factory=set)

    def add(self, args: tuple[Any, ...]) -> None:
        """Count one call by what it was given: shapes and dtypes alone, no values, which a GPU would be waited for."""
        self.calls += 1
        x = next((arg for arg in args if isinstance(arg, Tensor) and arg.ndim > 1), None)
        module = next((arg for arg in args if isinstance(arg, nn.Module)), None)
        if x is not None:
            self.batch_sizes.add(x.shape[0])
            self.lengths.add(x.shape[1])
        if module is not None:
            first = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
            self.dtypes |= {str(first).removeprefix("torch.")} if first is not None else set()
            self.modes.add("train" if module.training else "eval" if torch.is_grad_enabled() else "no_grad")

    def to_json(self) -> dict[str, Any]:
        """What was counted, in order; nothing where there was no call."""
        named = {name: sorted(value) for name, value in vars(self).items() if isinstance(value, set)}
        return {"calls": self.calls, **named} if self.calls else {}


def tallied(subject: Subject, tally: Tally) -> Subject:
    """The same subject; each call of it, and the seed of each build, is counted."""

    def wrap(seam: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tally.add(args)
            return seam(*args, **kwargs)

        call.__wrapped__ = seam  # type: ignore[attr-defined]
        return call

    def build(seed: int) -> nn.Module:
        tally.seeds.add(seed)
        return subject.build(seed)

    build.__wrapped__ = subject.build  # type: ignore[attr-defined]
    seams: dict[str, Any] = {name: wrap(getattr(subject, name)) for name in _COUNTED if subject.offers(name)}
    return replace(subject, build=build, **seams)
