"""Memory that was asked for is followed element by element."""

import torch

from nsa_doctor.probes.hooks.written_memory import WrittenMemory


def test_parts_of_memory_are_written_one_by_one() -> None:
    memory, table = WrittenMemory(), torch.empty(3, 8)
    memory.ran("empty", [table], [])
    assert not memory.is_written(table[1:])
    memory.ran("copy_", [table[1, 2:4]], [table[1, 2:4]])
    assert memory.is_written(table[1, 2:4])
    assert memory.is_written(table.mT[3, 1:2])
    assert not memory.is_written(table[1])
    memory.ran("fill_", [table[:, :1].expand(3, 8)], [table[:, :1].expand(3, 8)])
    assert memory.is_written(table[:, 0])
    memory.ran("zero_", [table], [table])
    assert memory.is_written(table)


def test_what_is_not_followed_counts_as_written() -> None:
    memory, table = WrittenMemory(), torch.empty(4)
    assert memory.is_written(table)
    memory.ran("empty", [table], [])
    assert memory.is_written(table.view(torch.float16))
    assert not memory.is_written(table)
    table.resize_(9)
    assert memory.is_written(table)
    memory.ran("empty", [torch.empty(0), torch.empty(3, device="meta")], [])
