"""What is handed to flash-attn begins at multiples of 16 bytes, wherever the caller's tensors lie."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa.ops.flash_layout import laid_out

B, S, H, D = 2, 5, 3, 16


def shifted(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def in_odd_rows(x: Tensor) -> Tensor:
    return torch.cat([x, x[..., :1]], -1)[..., :D]


def channels_outermost(x: Tensor) -> Tensor:
    return x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)


@pytest.mark.parametrize("layout", [shifted, in_odd_rows, channels_outermost])
def test_what_flash_attn_cannot_read_is_copied(layout: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(B, S, H, D, dtype=torch.bfloat16)
    given = laid_out(layout(x), D)
    assert torch.equal(given, x)
    assert given.is_contiguous()
    assert given.data_ptr() % 16 == 0


def test_what_it_can_read_is_not() -> None:
    wide = torch.randn(B, S, H, 2 * D, dtype=torch.bfloat16)
    for x in (wide, wide[..., :D], wide[:, 1:, :, D:], wide.transpose(0, 1), wide[:, :1, :, :D]):
        assert laid_out(x, x.shape[-1]) is x


def test_channels_are_filled_up_with_zeros() -> None:
    x = torch.randn(B, S, H, D, dtype=torch.bfloat16)
    given = laid_out(shifted(x), D + 8)
    assert torch.equal(given, torch.nn.functional.pad(x, (0, 8)))
