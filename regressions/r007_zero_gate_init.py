"""r007 zero-gate-init

Reported: 004, of a checkpoint at step 0 and of the module it came from.
Symptom: weight and bias of gate.fc2 are all zero, so that every gate is [1/3, 1/3, 1/3] whatever the input.
Cause: initialisation, as reported. Established here: such a gate is not dead, since one optimizer step moves fc2; but
    that step reaches neither fc1 nor the queries, and until then every token averages its branches alike.
Check: GAT101 on a module, GAT201 on a checkpoint.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nsa.config import load_config
from nsa.nn import NSAttention, gate
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"


def reproduce() -> None:
    torch.manual_seed(0)
    config = load_config(_CONFIG).model
    layer = NSAttention(config)
    assert bool(layer.gate.fc2.weight.any()), "gate.fc2.weight starts at zero"
    weights = layer.branches(torch.randn(1, 64, config.dim)).gates
    assert float(weights.std(dim=1).min()) > 0, "every token has the same gate"


class ZeroGate(gate.Gate):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        torch.nn.init.zeros_(self.fc2.weight)


def planted() -> Subject:
    return faulty_layer({"nsa.nn.attention.Gate": ZeroGate}, _CONFIG)


def checkpoint(folder: Path) -> Sequence[str]:
    layer = planted().build(0)
    save_file(layer.state_dict(), folder / "model.safetensors")
    return ["gate-stats", str(folder / "model.safetensors")]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the module",
            command=examine(f"{__name__}:planted", "GAT"),
            expected=found("GAT101", module="gate.fc2", says="fc2.weight and gate.fc2.bias are exactly zero"),
        ),
        Plant(name="in a checkpoint", command=checkpoint, expected=found("GAT201", module="gate")),
    ),
)
