"""Gates of a loop over tokens are found in a time that grows with the tokens."""

import time

import torch
from torch import Tensor, nn

from nsa_doctor.probes.attention.gates import gates
from nsa_doctor.probes.model.built_module import built
from tests.nsa_doctor.small_subjects import small_subject


class Oscillator(nn.Module):
    """A state to which what it makes of a token is added, and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            mixed = self.given(token) + state
            state = 0.1 * state + 0.1 * mixed
            outputs.append(mixed.sigmoid() * token)
        return torch.stack(outputs, 1)


def test_a_scan_is_searched_in_time() -> None:
    subject = small_subject(Oscillator, width=8, max_length=256)
    sp = built(subject)
    start = time.process_time()
    found, _ = gates(sp, sp.input(160, 2))
    assert time.process_time() - start < 20
    assert {gate.parameters for gate in found} == {("given.weight", "given.bias")}
