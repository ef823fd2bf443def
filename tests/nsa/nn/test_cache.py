import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa import Geometry
from nsa.nn.buffer import TokenBuffer
from nsa.nn.cache import NSACache, Tokens
from nsa.ops.compress.reference import compress, phi_avg

GEOMETRY = Geometry(l=4, d=2, l_sel=4, n_sel=3, w=5)


@pytest.fixture
def tokens() -> Tokens:
    """Sixty tokens of two rows and three groups, a different Dk and Dv, every branch its own."""
    return Tokens(*(torch.randn(2, 60, 3, size) for size in (4, 6) * 3))


def average(x: Tensor) -> Tensor:
    return compress(x, phi_avg, GEOMETRY)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 7, 11, 60], ids=lambda chunk: f"chunk{chunk}")
def test_each_branch_is_handed_what_its_queries_may_see(
    tokens: Tokens, chunk: int, assert_close: Callable[..., None]
) -> None:
    cache = NSACache(GEOMETRY, 2, 1)
    for start in range(0, 60, chunk):
        end = min(start + chunk, 60)
        handed = cache.append(Tokens(*(x[:, start:end] for x in tokens)), average, average)
        assert cache.length == end
        first_seen = max(0, start - GEOMETRY.w + 1)
        assert torch.equal(handed.k_sel, tokens.k_sel[:, :end])
        assert torch.equal(handed.v_sel, tokens.v_sel[:, :end])
        assert torch.equal(handed.k_win, tokens.k_win[:, first_seen:end])
        assert torch.equal(handed.v_win, tokens.v_win[:, first_seen:end])
        assert handed.k_cmp.shape[1] == handed.v_cmp.shape[1] == GEOMETRY.num_compressed(end)
        if GEOMETRY.num_compressed(end):
            assert_close(handed.k_cmp, average(tokens.k_cmp[:, :end]))
            assert_close(handed.v_cmp, average(tokens.v_cmp[:, :end]))


@torch.no_grad()
def test_the_compressor_runs_only_when_a_token_is_due(tokens: Tokens) -> None:
    cache, calls = NSACache(GEOMETRY, 2), []

    def record(x: Tensor) -> Tensor:
        calls.append((cache.length, x.shape[1]))
        return average(x)

    for position in range(11):
        cache.append(Tokens(*(x[:, position : position + 1] for x in tokens)), record, average)
    assert calls == [(4, 4), (6, 4), (8, 4), (10, 4)]


@torch.no_grad()
def test_room_is_made_for_max_length_at_once(tokens: Tokens) -> None:
    cache, sizes = NSACache(GEOMETRY, 2, 200), set()
    for num_tokens in (1, 60, 60, 60, 19):
        cache.append(Tokens(*(x[:, :num_tokens] for x in tokens)), average, average)
        sizes.add(cache.num_bytes())
    assert len(sizes) == 1


def handed_by(cache: NSACache, tokens: Tokens, start: int, end: int) -> Tokens:
    return cache.append(Tokens(*(x[:, start:end] for x in tokens)), average, average)


def held(cache: NSACache) -> list[object]:
    """Everything a cache knows."""
    buffers = [(len(buffer), buffer._tokens().tolist() if len(buffer) else []) for buffer in cache._buffers()]
    reads = [] if cache.reads is None else [getattr(cache.reads, name).tolist() for name in vars(cache.reads)]
    return [cache.length, cache._kind, reads, buffers]


NUM_APPENDS = 8  # two buffers for each of four kinds


@torch.no_grad()
@pytest.mark.parametrize("before", [0, 3, 9, 22])
@pytest.mark.parametrize("size", [1, 4, 30])
@pytest.mark.parametrize("failing", [*range(NUM_APPENDS), "k", "v", "reads"])
def test_tokens_that_cannot_be_added_leave_the_cache_as_it_was(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch, failing: int | str, size: int, before: int
) -> None:
    cache, sound = (NSACache(GEOMETRY, 2, count_reads=True) for _ in range(2))
    for each in (cache, sound):
        for start in range(before):
            handed_by(each, tokens, start, start + 1)
    known, calls, append = held(cache), [], TokenBuffer.append

    def run_out_of_memory(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def append_or_fail(buffer: TokenBuffer, x: Tensor) -> Tensor:
        calls.append(buffer)
        if len(calls) - 1 == failing:
            append(buffer, x)  # as far as it comes
            run_out_of_memory(x)
        return append(buffer, x)

    compress_k, compress_v = (run_out_of_memory if failing == name else average for name in "kv")
    new = Tokens(*(x[:, before : before + size] for x in tokens))
    with monkeypatch.context() as patched, contextlib.suppress(torch.OutOfMemoryError):
        patched.setattr(TokenBuffer, "append", append_or_fail)
        if failing == "reads":
            patched.setattr(NSACache, "_add_reads", lambda cache, like, **reads: run_out_of_memory(like))
        cache.append(new, compress_k, compress_v)
        assert failing in ("k", "v"), "nothing failed"
        return  # no compressed token was due
    assert held(cache) == known
    for start, end in ((before, before + size), (before + size, before + size + 3)):
        pairs = zip(handed_by(cache, tokens, start, end), handed_by(sound, tokens, start, end), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@torch.no_grad()
def test_a_first_append_that_fails_decides_no_dtype(tokens: Tokens) -> None:
    cache = NSACache(GEOMETRY, 2)

    def fail(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        cache.append(tokens, fail, fail)
    assert (cache.length, cache.num_bytes()) == (0, 0)
    in_double = Tokens(*(x.double() for x in tokens))
    handed = cache.append(in_double, average, average)
    assert handed.k_sel.dtype == torch.float64
    assert torch.equal(handed.k_sel, in_double.k_sel)


@torch.no_grad()
def test_memory_that_is_not_there_leaves_a_buffer_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = TokenBuffer(capacity=2)
    first = buffer.append(torch.zeros(1, 2, 1, 1))

    def fail(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", fail)
        with pytest.raises(torch.OutOfMemoryError):
            buffer.append(torch.ones(1, 1, 1, 1))
    assert (len(buffer), buffer.capacity) == (2, 2)
    assert buffer.append(torch.ones(1, 1, 1, 1)).flatten().tolist() == [0.0, 0.0, 1.0]
    assert first.flatten().tolist() == [0.0, 0.0]
