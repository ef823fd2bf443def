"""What the built-in layer is given beside, for what is asked of objects that rows are chosen of."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject


class Beams(nn.Module):
    """The newest rows beside their sums; both are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.sums = torch.zeros(()), torch.zeros(())

    def forward(self, x: Tensor) -> None:
        """Keep x [B, S, D]."""
        self.rows, self.sums = x.detach(), x.detach().cumsum(1)

    def reorder(self, beams: Tensor) -> None:
        """Go on with these rows."""
        self.rows, self.sums = self.rows[beams], self.sums[beams]


def with_beams(subject: Subject) -> Subject:
    """Something beside it that keeps rows to choose of."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.beams = Beams()
        return module

    def forward(module: nn.Module, x: Tensor) -> Any:
        cast("Any", module).beams(x)
        return subject.forward(module, x)

    return replace(subject, build=build, forward=forward, prefill=None, step=None)
