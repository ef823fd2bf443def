"""A cache whose rows are chosen again, and whose newest tokens are taken back, decodes as a new one would."""

from collections.abc import Callable

import pytest
import torch

from nsa import NSAttention, Transformer
from nsa.nn.cache import NSACache

LENGTH = 23  # beyond the window and several compressed blocks of the small configuration


def filled(layer: NSAttention, x: torch.Tensor, *, records: bool = False, chunk: int = 5) -> NSACache:
    cache = layer.new_cache(x.shape[0])
    if records:
        cache.record_past()
    for part in x.split(chunk, dim=1):
        layer(part, cache)
    return cache


@torch.no_grad()
@pytest.mark.parametrize("phi", ["avg", "mlp", "conv"])
def test_chosen_rows_decode_as_rows_that_were_there_from_the_start(
    make_attention: Callable[..., NSAttention], assert_close: Callable[..., None], phi: str
) -> None:
    layer, rows = make_attention(phi=phi), torch.tensor([2, 0, 0, 1, 2])
    x, after = torch.randn(3, LENGTH, 24).double(), torch.randn(5, 9, 24).double()
    cache = filled(layer, x)
    cache.select_rows(rows)
    assert cache.batch == 5
    expected = filled(layer, x[rows])
    for token in after.split(1, dim=1):
        assert_close(layer(token, cache), layer(token, expected))


@torch.no_grad()
def test_what_a_chosen_row_adds_leaves_the_others_alone(make_attention: Callable[..., NSAttention]) -> None:
    layer, x = make_attention(), torch.randn(1, LENGTH, 24).double()
    cache = filled(layer, x)
    cache.select_rows(torch.tensor([0, 0]))
    after = torch.randn(2, 6, 24).double()
    both = layer(after, cache)
    alone = [layer(row[None], filled(layer, x)) for row in after]
    torch.testing.assert_close(both, torch.cat(alone), rtol=0, atol=1e-12)


@torch.no_grad()
def test_counted_reads_follow_their_rows(make_attention: Callable[..., NSAttention]) -> None:
    layer = make_attention()
    cache = layer.new_cache(2, count_reads=True)
    layer(torch.randn(2, LENGTH, 24).double(), cache)
    before = cache.reads
    cache.select_rows(torch.tensor([1, 1, 0]))
    assert before is not None
    assert cache.reads is not None
    assert torch.equal(cache.reads.selected, before.selected[[1, 1, 0]])


@torch.no_grad()
@pytest.mark.parametrize("removed", [0, 1, 2, 4, 5, 6, 11, 22, 23])
@pytest.mark.parametrize("chunk", [1, 5, 23])
@pytest.mark.parametrize("phi", ["avg", "mlp"])
def test_a_cropped_cache_decodes_as_if_the_tokens_had_never_been_added(
    make_attention: Callable[..., NSAttention],
    assert_close: Callable[..., None],
    removed: int,
    chunk: int,
    phi: str,
) -> None:
    layer, x = make_attention(phi=phi), torch.randn(2, LENGTH, 24).double()
    cache = filled(layer, x, records=True, chunk=chunk)
    cache.crop(removed)
    assert cache.length == LENGTH - removed
    after = torch.randn(2, 8, 24).double()
    expected = layer(torch.cat((x[:, : LENGTH - removed], after), 1))[:, LENGTH - removed :]
    assert_close(torch.cat([layer(token, cache) for token in after.split(1, 1)], 1), expected)


@torch.no_grad()
def test_a_cache_is_cropped_again_and_again(make_attention: Callable[..., NSAttention]) -> None:
    layer, x = make_attention(), torch.randn(1, 60, 24).double()
    whole, cache, length = layer(x), layer.new_cache(), 0
    cache.record_past()
    for added, removed in ((20, 0), (5, 4), (5, 5), (7, 2), (1, 0), (12, 11)):
        out = layer(x[:, length : length + added], cache)
        torch.testing.assert_close(out, whole[:, length : length + added], rtol=0, atol=1e-12)
        cache.crop(removed)
        length += added - removed
    assert cache.length == length


@torch.no_grad()
def test_what_was_not_recorded_cannot_be_taken_back(make_attention: Callable[..., NSAttention]) -> None:
    layer = make_attention()
    cache = filled(layer, torch.randn(1, 9, 24).double())
    with pytest.raises(ValueError, match="num_tokens must be 0 to 0, those added since record_past, got 1"):
        cache.crop(1)
    cache.record_past()
    layer(torch.randn(1, 4, 24).double(), cache)
    with pytest.raises(ValueError, match="must be 0 to 4, those added since record_past, got 5"):
        cache.crop(5)
    with pytest.raises(ValueError, match="got -1"):
        cache.crop(-1)
    assert cache.length == 13


@torch.no_grad()
def test_an_append_that_raises_is_not_recorded(make_model: Callable[..., Transformer]) -> None:
    model = make_model()
    cache, ids = model.new_cache(), torch.arange(12)[None]
    for layer in cache:
        layer.record_past()
    model(ids[:, :7], cache)
    model.norm.register_forward_pre_hook(lambda module, given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids[:, 7:], cache)
    for layer in cache:
        layer.crop(3)
        assert layer.length == 4


def test_a_cache_that_counts_reads_records_nothing(make_attention: Callable[..., NSAttention]) -> None:
    with pytest.raises(ValueError, match="a cache that counts reads cannot record its past"):
        make_attention().new_cache(count_reads=True).record_past()
