import torch
from hypothesis import given
from hypothesis import strategies as st

from nsa.nn.buffer import TokenBuffer


@given(
    keep=st.none() | st.integers(1, 9),
    capacity=st.integers(1, 40),
    steps=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 9)), max_size=12),
)
def test_buffer_behaves_as_a_list(keep: int | None, capacity: int, steps: list[tuple[int, int]]) -> None:
    buffer, held, written = TokenBuffer(keep=keep, capacity=capacity), [], 0
    for num_new, left in steps:
        new = list(range(written, written + num_new))
        written += num_new
        seen = buffer.append(torch.tensor(new, dtype=torch.float64).view(1, -1, 1, 1).expand(2, -1, 3, 2))
        held = held + new
        assert torch.equal(seen, torch.tensor(held, dtype=torch.float64).view(1, -1, 1, 1).expand(2, -1, 3, 2))
        if keep is not None:
            held = held[len(held) - min(len(held), keep, left) :]
            buffer.drop_to(min(keep, left))
        assert len(buffer) == len(held)
        buffer.fill_unwritten(torch.nan)
        assert buffer.capacity <= max(capacity, 2 * keep if keep is not None else max(2 * written, written + 25))


def test_growing_allocates_seldom_and_dropping_never() -> None:
    whole, window = TokenBuffer(capacity=1), TokenBuffer(keep=16)
    allocations: dict[TokenBuffer, set[int]] = {whole: set(), window: set()}
    for _ in range(1000):
        for buffer, sizes in allocations.items():
            buffer.append(torch.zeros(1, 1, 1, 1))
            sizes.add(buffer.num_bytes())
        window.drop_to(15)
    assert sorted(size // 4 for size in allocations[whole]) == [2**n for n in range(11)]
    assert {size // 4 for size in allocations[window]} == {32}


def test_unwritten_memory_is_all_that_fill_unwritten_touches() -> None:
    buffer = TokenBuffer(keep=4)
    buffer.append(torch.arange(5.0).view(1, 5, 1, 1))
    buffer.drop_to(2)
    buffer.fill_unwritten(7.0)
    assert buffer._memory is not None
    assert buffer._memory.flatten().tolist() == [7.0, 7.0, 7.0, 3.0, 4.0, 7.0, 7.0, 7.0]


def test_buffer_made_in_inference_mode_can_be_written_outside() -> None:
    buffer = TokenBuffer()
    with torch.inference_mode():
        buffer.append(torch.zeros(1, 2, 1, 1))
    with torch.no_grad():
        assert buffer.append(torch.ones(1, 1, 1, 1)).flatten().tolist() == [0.0, 0.0, 1.0]
