"""A module is moved and converted, also where it has a `to` of its own."""

from typing import Self

import torch
from torch import nn

from nsa_doctor.probes.model.state import cast


class OwnTo(nn.Linear):
    """It calls the device otherwise than torch does."""

    def to(self, device_or_dtype: torch.device | torch.dtype | str, verbose: bool = False) -> Self:  # type: ignore[override]
        return super().to(device_or_dtype)


def test_a_module_with_a_to_of_its_own_is_moved_and_converted() -> None:
    moved = cast(OwnTo(2, 3), torch.float64, "meta")
    assert moved.weight.device.type == "meta"
    assert moved.weight.dtype == torch.float64


def test_a_module_stays_where_it_is_where_no_device_is_named() -> None:
    assert cast(OwnTo(2, 3), None).weight.device.type == "cpu"
