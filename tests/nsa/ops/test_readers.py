"""The readers of a block: every (query, slot) pair stands under its block once, in order, in parts of some length."""

import pytest
import torch
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT
from nsa.ops.select.readers import readers_of_blocks

FIRST_QUERY = 7


def drawn(num_blocks: int) -> Tensor:
    """Slots [2, 40, 2, 3] of several blocks of the sequence, block 0 in each, empty ones and blocks beyond it too."""
    generator = torch.Generator().manual_seed(num_blocks)
    slots = torch.randint(num_blocks, (2, 40, 2, 3), generator=generator)
    slots[..., 0] = 0
    slots[:, ::3, :, 2] = EMPTY_SLOT
    slots[:, 1::5, :, 1] = num_blocks
    return slots


@pytest.mark.parametrize("num_blocks", [1, 5, 8191, 8192, 40_000], ids="{}-blocks".format)
def test_each_block_has_its_readers_in_the_order_of_queries(num_blocks: int):
    slots = drawn(num_blocks)
    readers = readers_of_blocks(slots, FIRST_QUERY, num_blocks, most=4)
    exists = (slots >= 0) & (slots < num_blocks)
    stream = torch.arange(4).view(2, 1, 2, 1)
    block = torch.where(exists, stream * num_blocks + slots, 4 * num_blocks).flatten()
    expected = sorted(range(block.numel()), key=lambda pair: (int(block[pair]), pair))
    assert readers.pair.tolist() == expected
    assert readers.query.tolist() == [FIRST_QUERY + pair // 6 % 40 for pair in expected]
    assert torch.equal(readers.first.diff(), block.bincount(minlength=4 * num_blocks + 1)[:-1])


@pytest.mark.parametrize("most", [1, 4, 1000])
def test_parts_cover_all_readers_of_their_block_and_no_more(most: int):
    num_blocks = 5
    readers = readers_of_blocks(drawn(num_blocks), FIRST_QUERY, num_blocks, most)
    parts = readers.block.bincount(minlength=4 * num_blocks + 1)
    assert torch.equal(parts[:-1], (readers.first.diff() + most - 1) // most)
    assert torch.equal(readers.first_part.diff(), parts[:-1])
    assert readers.num == readers.block.numel()
    assert torch.equal(readers.block, readers.block.sort().values)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_queries", "num_blocks", "first_query"), [(75, 11, 7), (40, 5, 39), (2000, 64, 320)])
def test_they_are_listed_as_they_are_sorted(num_queries: int, num_blocks: int, first_query: int):
    from nsa.ops.select import reader_kernels

    torch.manual_seed(num_queries)
    slots = torch.rand(2, num_queries, 3, num_blocks, device="cuda").argsort(-1)[..., :5].contiguous()
    slots[:, ::3, :, 4] = EMPTY_SLOT
    slots[:, 1::7, :, 0] = num_blocks
    found = reader_kernels.readers_of_blocks(slots, first_query, num_blocks, most=16)
    expected = readers_of_blocks(slots[:, first_query:], first_query, num_blocks, most=16)
    assert torch.equal(found.query[: found.first[-1]], expected.query[: expected.first[-1]])
    for name in ("first", "first_part", "block"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
