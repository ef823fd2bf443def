"""Tables of distances with registers before tokens: silent with rows of their own, else counted."""

import torch
from torch import Tensor, nn

from tests.nsa_doctor.checks.test_relative_tables import DIM, examined, with_registers


class Registered(nn.Module):
    """Sixteen registers before tokens, whose index is by place."""

    def __init__(self, is_by_place: bool) -> None:
        super().__init__()
        self.others, self.mix = nn.Parameter(torch.randn(16, DIM)), nn.Linear(DIM, DIM)
        self.rel_bias, self.is_by_place = nn.Embedding(200, 1), is_by_place

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.others.expand(len(x), -1, -1), x], 1)
        place = torch.arange(x.shape[1])
        index = place[:, None] + place if self.is_by_place else with_registers(place[:, None], place[None])
        return self.mix((self.rel_bias(index)[..., 0] + x @ x.mT).softmax(-1) @ x)[:, 16:]


def test_tokens_beside_those_that_are_given_are_counted() -> None:
    assert examined(lambda: Registered(False)).findings == ()
    assert examined(lambda: Registered(True)).findings[0].message.endswith(", at S=37 of 53 tokens")
