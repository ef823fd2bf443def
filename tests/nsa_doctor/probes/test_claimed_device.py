"""What is refused of tensors that claim to lie on a GPU is what a GPU refuses: measured there, and compared again."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.probes.model.claimed_device import ClaimedDevices

ONE, TWO = torch.tensor(1), torch.tensor(2.0)
FOUR, IDS = torch.full((4,), 2.0), torch.arange(4)
PICKED = torch.tensor([True, False, True, True])


def changed(x: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    y = x.clone()
    change(y)
    return y


def put(x: Tensor, index: object, value: object) -> Tensor:
    return changed(x, lambda y: y.__setitem__(index, value))


def lengths_of(x: Tensor) -> Tensor:
    rows = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(rows, batch_first=True)[1]


def packed(x: Tensor, lengths: Tensor) -> Tensor:
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(rows, batch_first=True)[0]


TAKEN = {  # of x [2, 3, 4] on the GPU
    "lists": lambda x: x + x.new_tensor([1.0, 2, 3, 4]),
    "named by type": lambda x: x + FOUR.type(x.type()),
    "number first": lambda x: TWO * x,
    "base": lambda x: TWO**x,
    "number stored": lambda x: put(x, (..., IDS.to(x.device)), TWO),
    "number filled": lambda x: x.masked_fill(x > 0, TWO),
    "number added in place": lambda x: changed(x, lambda y: y.add_(TWO)),
    "numbers chosen": lambda x: torch.where(x > 0, x, TWO),
    "condition of one": lambda x: torch.where(torch.tensor(True), x, x),
    "read at the CPU's": lambda x: x[:, IDS[:2], IDS[:2].to(x.device)],
    "written at the CPU's": lambda x: put(x, (..., PICKED), 1.0),
    "copied in": lambda x: put(x, (slice(None), 0), FOUR),
    "scattered into the CPU's": lambda x: torch.zeros(2, 3, 4).select_scatter(x[:, 0], 1, 0),
    "split at the CPU's": lambda x: torch.tensor_split(x, torch.tensor([1, 2]), -1)[0],
    "unravelled": lambda x: torch.stack(torch.unravel_index(x.argmax(), x.shape)),
    "lengths on the CPU": lambda x: packed(x, torch.tensor([3, 2])),
    "lengths that unpacking gives": lambda x: packed(x, lengths_of(x)),
    "pinned": lambda x: x + FOUR.pin_memory().to(x.device),
    "rows of numbers": lambda x: x * FOUR[0] + sum(FOUR),
    "numbers of numpy": lambda x: np.float64(2) * x,
}
REFUSED = {
    "from_numpy": lambda x: x + torch.from_numpy(np.ones(4, np.float32)),
    "Tensor of a list": lambda x: x + torch.Tensor([1, 2, 3, 4]),
    "named by dtype": lambda x: x + FOUR.type(x.dtype),
    "generator": lambda x: x + torch.randn(4, generator=torch.Generator(), device=x.device),
    "condition": lambda x: torch.where(PICKED, x, x),
    "other": lambda x: torch.where(x > 0, x, FOUR),
    "mask": lambda x: x.masked_fill(PICKED, 0.0),
    "numbers stacked": lambda x: torch.stack([x.sum(), TWO]),
    "least": lambda x: torch.clamp(x, min=TWO),
    "number selected": lambda x: x.index_select(-1, ONE),
    "number written to": lambda x: changed(TWO, lambda y: y.add_(x.sum())),
    "stored": lambda x: put(x, (..., IDS.to(x.device)), FOUR),
    "integers stored": lambda x: put(x.long(), (..., IDS.to(x.device)), IDS),
    "the CPU's at the GPU's": lambda x: FOUR[x.long().clamp(0, 3)],
    "gathered": lambda x: x.gather(-1, IDS.expand(2, 3, 4)),
    "ids": lambda x: F.embedding(IDS, x[0]),
    "split at the GPU's": lambda x: torch.tensor_split(x, torch.tensor([1, 2]).to(x.device), -1)[0],
    "lengths on the GPU": lambda x: packed(x, torch.tensor([3, 2]).to(x.device)),
    "array": lambda x: x * np.ones(4, np.float32),
    "bias": lambda x: F.layer_norm(x, (4,), FOUR),
    "attention's mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(3, 3)),
    "joined with nothing": lambda x: torch.cat([torch.zeros(0), x.flatten()]),
    "row of one": lambda x: x * FOUR[:1],
    "like the CPU's": lambda x: x + torch.ones_like(FOUR),
    "equal": lambda x: x * torch.equal(x, torch.ones(2, 3, 4)),
    "mapped": torch.vmap(lambda row: row * FOUR),
}
CASES = [(call, name in TAKEN) for name, call in {**TAKEN, **REFUSED}.items()]
parametrized = pytest.mark.parametrize(("call", "is_taken"), CASES, ids=[*TAKEN, *REFUSED])


def is_accepted(call: Callable[[Tensor], object]) -> bool:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to("cuda:0")
    try:
        call(x)
    except (RuntimeError, TypeError):
        return False
    return True


@parametrized
def test_what_claims_to_lie_on_a_gpu(call: Callable[[Tensor], object], is_taken: bool) -> None:
    with ClaimedDevices(("tests",)).on(torch.device("cuda:0")):
        assert is_accepted(call) is is_taken


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@parametrized
def test_what_lies_on_a_gpu(call: Callable[[Tensor], object], is_taken: bool) -> None:
    assert is_accepted(call) is is_taken
