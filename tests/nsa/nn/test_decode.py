"""Decoding through the cache gives what one call over all tokens gives, and reads no more than it must."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa import NSAttention, Transformer, prefill
from nsa.nn import NSACache

VARIANTS: dict[str, dict[str, object]] = {
    "avg-softmax": {"phi": "avg", "gate_temperature": 0.7},
    "mlp-sigmoid": {"phi": "mlp", "gate": "sigmoid"},
    "conv-shared": {"phi": "conv", "shared_kv": True},
    "mlp-shared-touching-blocks": {"phi": "mlp", "shared_kv": True, "l": 8, "d": 8, "l_sel": 8, "w": 1},
    "conv-wide-window": {"phi": "conv", "l": 2, "d": 2, "l_sel": 4, "n_sel": 5, "w": 100, "n_kv_groups": 1},
}
LENGTH = 70  # block edges of every kind, several times over, and memory that outgrows its first 64 tokens
MakeLayer = Callable[..., NSAttention]
MakeModel = Callable[..., Transformer]


@pytest.fixture(params=list(VARIANTS))
def attention(request: pytest.FixtureRequest, make_attention: MakeLayer) -> NSAttention:
    return make_attention(**VARIANTS[request.param])


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, LENGTH, 24, dtype=torch.float64)


@torch.no_grad()
def decode(layer: NSAttention, x: Tensor, chunk: int, cache: NSACache | None = None) -> Tensor:
    cache = cache or layer.new_cache(x.shape[0])
    return torch.cat([layer(part, cache) for part in x.split(chunk, dim=1)], dim=1)


@pytest.mark.parametrize("chunk", [1, 3, 17], ids=lambda chunk: f"chunk{chunk}")
def test_decode_equals_prefill_at_every_position(
    attention: NSAttention, x: Tensor, chunk: int, assert_close: Callable[..., None]
) -> None:
    assert_close(decode(attention, x, chunk), attention(x).detach())


@pytest.mark.parametrize("impl", ["reference", "fused"])
def test_other_implementations_decode_too(
    make_attention: MakeLayer, x: Tensor, impl: str, assert_close: Callable[..., None]
) -> None:
    layer = make_attention(impl)
    assert_close(decode(layer, x, 5), layer(x).detach())


def test_a_long_prompt_then_single_tokens_then_a_chunk(
    attention: NSAttention, x: Tensor, assert_close: Callable[..., None]
) -> None:
    cache = attention.new_cache(2)
    with torch.no_grad():
        parts = [attention(part, cache) for part in x.split([41, 1, 1, 1, 17, 1, 8], dim=1)]
    assert_close(torch.cat(parts, dim=1), attention(x).detach())


@pytest.mark.parametrize(
    ("chunk", "max_length"),
    [(1, 1), (17, None), (17, 200)],
    ids=["chunk1-grows-from-1", "chunk17", "chunk17-preallocated"],
)
def test_memory_that_holds_no_token_is_never_read(
    attention: NSAttention, x: Tensor, chunk: int, max_length: int | None, assert_close: Callable[..., None]
) -> None:
    cache = attention.new_cache(2, max_length)
    with torch.no_grad():
        for part, due in zip(x.split(chunk, dim=1), attention(x).split(chunk, dim=1), strict=True):
            assert_close(attention(part, cache), due)
            cache.fill_unwritten(torch.nan)


def test_every_step_reads_what_the_formula_says(attention: NSAttention, x: Tensor) -> None:
    cache = attention.new_cache(2, count_reads=True)
    geometry, before = attention.geometry, [0, 0, 0]
    for position, token in enumerate(x.split(1, dim=1)):
        with torch.no_grad():
            slots = attention.branches(token, cache).slots[:, 0].tolist()
        assert cache.reads is not None
        totals = [cache.reads.compressed.clone(), cache.reads.selected.clone(), cache.reads.sliding.clone()]
        for row in range(2):
            for group in range(attention.config.n_kv_groups):
                due = geometry.num_reads(position, slots[row][group])
                got = [int((now - then)[row, group]) if position else int(now[row, group])
                       for now, then in zip(totals, before, strict=True)]  # fmt: skip
                assert got == [due.compressed, due.selected, due.sliding], f"position {position}"
        before = totals
        assert cache.reads.emission.unique().tolist() == [geometry.num_compressed(position + 1) * geometry.l]


@pytest.mark.parametrize("chunk", [3, 17, LENGTH], ids=lambda chunk: f"chunk{chunk}")
def test_chunks_read_as_much_as_their_tokens_one_by_one(attention: NSAttention, x: Tensor, chunk: int) -> None:
    cache, geometry = attention.new_cache(2, count_reads=True), attention.geometry
    decode(attention, x, chunk, cache)
    slots = attention.branches(x).slots.tolist()
    assert cache.reads is not None
    for row in range(2):
        for group in range(attention.config.n_kv_groups):
            due = [geometry.num_reads(position, slots[row][position][group]) for position in range(LENGTH)]
            assert cache.reads.compressed[row, group] == sum(reads.compressed for reads in due)
            assert cache.reads.selected[row, group] == sum(reads.selected for reads in due)
            assert cache.reads.sliding[row, group] == sum(reads.sliding for reads in due)
            assert cache.reads.emission[row, group] == geometry.num_compressed(LENGTH) * geometry.l


def test_rows_of_a_batch_decode_as_they_do_alone(
    attention: NSAttention, x: Tensor, assert_close: Callable[..., None]
) -> None:
    together = decode(attention, x, 5)
    for row in range(2):
        assert_close(together[row : row + 1], decode(attention, x[row : row + 1], 5))


def test_memory_follows_what_each_branch_must_keep(make_attention: MakeLayer) -> None:
    layer = make_attention()
    cache = layer.new_cache(1)
    decode(layer, torch.randn(1, 1000, 24, dtype=torch.float64), 20, cache)
    per_token = 2 * (6 + 5) * 8  # groups x (Dk + Dv) x bytes of a float64
    tokens, compressed, window, pending = 1000, 499, 7, 4
    assert cache.num_bytes() <= 2 * per_token * (tokens + compressed + window + pending)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "sequential"])
@pytest.mark.parametrize("what", ["layer", "model"])
def test_prefill_obeys_its_flag_and_equals_forward(
    what: str,
    batched: bool,
    make_attention: MakeLayer,
    make_model: MakeModel,
    x: Tensor,
    assert_close: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: NSAttention | Transformer = make_attention(phi="mlp") if what == "layer" else make_model(phi="mlp")
    given = x[:, :45] if what == "layer" else torch.randint(0, 29, (2, 45))
    expected = module(given).detach()
    monkeypatch.setenv("NSA_PREFILL_BATCHED", str(int(batched)))
    calls = []
    module.register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[1]))
    with torch.no_grad():
        cache = module.new_cache(2)
        got = prefill(module, given[:, :-1], cache)
        last = module(given[:, -1:], cache=cache)
    assert calls == [*([44] if batched else [1] * 44), 1]
    assert_close(torch.cat((got, last), dim=1), expected)


@pytest.mark.parametrize("chunk", [1, 3, 17], ids=lambda chunk: f"chunk{chunk}")
def test_model_decodes_what_it_prefills(make_model: MakeModel, chunk: int, assert_close: Callable[..., None]) -> None:
    model = make_model(phi="conv", gate="sigmoid")
    ids = torch.randint(0, 29, (2, 45))
    with torch.no_grad():
        cache = model.new_cache(2, 45)
        got = torch.cat([model(part, cache) for part in ids.split(chunk, dim=1)], dim=1)
        assert_close(got, model(ids))


def test_cache_moves_between_inference_mode_and_no_grad(
    make_attention: MakeLayer, x: Tensor, assert_close: Callable[..., None]
) -> None:
    layer = make_attention(phi="mlp")
    cache, outputs = layer.new_cache(2), []
    for index, part in enumerate(x.split(5, dim=1)):
        with torch.inference_mode(index % 2 == 0), torch.no_grad():
            outputs.append(layer(part, cache).clone())
    assert_close(torch.cat(outputs, dim=1), layer(x).detach())


def test_reads_are_counted_from_inference_mode_into_no_grad(make_attention: MakeLayer, x: Tensor) -> None:
    layer = make_attention()
    totals = []
    for is_mixed in (False, True):
        cache = layer.new_cache(2, count_reads=True)
        for index, part in enumerate(x.split(5, dim=1)):
            with torch.inference_mode(is_mixed and index % 2 == 0), torch.no_grad():
                layer(part, cache)
        assert cache.reads is not None
        totals.append(torch.stack([cache.reads.compressed, cache.reads.selected, cache.reads.sliding]))
    assert torch.equal(*totals)


def test_cache_refuses_to_cut_a_graph_and_stays_as_it_is(make_attention: MakeLayer, x: Tensor) -> None:
    layer = make_attention()
    cache = layer.new_cache(2)
    with pytest.raises(ValueError, match=r"torch\.no_grad"):
        layer(x, cache)
    assert cache.length == 0
    assert cache.num_bytes() == 0


@torch.no_grad()
def test_cache_refuses_what_does_not_continue_it(make_attention: MakeLayer, x: Tensor) -> None:
    layer = make_attention()
    cache = layer.new_cache(2)
    layer(x, cache)
    with pytest.raises(ValueError, match="x must have 2 rows to match the cache, got 1"):
        layer(x[:1], cache)
    with pytest.raises(ValueError, match="make a new cache"):
        layer.float()(x.float(), cache)
    with pytest.raises(ValueError, match="cache and cu_seqlens exclude each other"):
        layer(x.float(), cache, torch.tensor([0, LENGTH], dtype=torch.int32))
    assert cache.length == LENGTH


@torch.no_grad()
def test_model_refuses_a_cache_with_other_layers(make_model: MakeModel) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="cache must have 2 layers, got 1"):
        model(torch.zeros(1, 3, dtype=torch.int64), model.new_cache(1)[:1])


@pytest.mark.parametrize(("batch", "max_length"), [(0, None), (1, 0)], ids=["no-rows", "no-length"])
def test_nonsense_sizes_are_refused(make_attention: MakeLayer, batch: int, max_length: int | None) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        make_attention().new_cache(batch, max_length)


@pytest.mark.parametrize("refused", ["slots", "impl", "counting"])
def test_a_refused_call_leaves_the_cache_as_it_was(make_attention: MakeLayer, x: Tensor, refused: str) -> None:
    layer = make_attention(impl="fused" if refused == "counting" else "auto")
    cache = layer.new_cache(x.shape[0], count_reads=refused == "counting")
    if refused != "counting":
        with torch.no_grad():
            layer(x[:, :20], cache)
    before = cache.length
    if refused == "impl":
        layer.impl = "flash"
    held = torch.full((x.shape[0], 3, 2, 4), 99) if refused == "slots" else None
    with torch.no_grad(), pytest.raises(ValueError, match=r"^slots must|^impl"):
        layer(x[:, 20:23], cache, slots=held)
    assert cache.length == before


@torch.no_grad()
@pytest.mark.parametrize("failing", ["attention", "projection"])
@pytest.mark.parametrize("counts_reads", [False, True], ids=["", "counting"])
def test_a_layer_that_runs_out_of_memory_leaves_the_cache_as_it_was(
    make_attention: MakeLayer, x: Tensor, monkeypatch: pytest.MonkeyPatch, failing: str, counts_reads: bool
) -> None:
    layer = make_attention()
    cache, sound = (layer.new_cache(2, count_reads=counts_reads) for _ in range(2))
    for each in (cache, sound):
        layer(x[:, :20], each)
    with monkeypatch.context() as patched:
        if failing == "projection":
            patched.setattr(layer.out_proj, "forward", runs_out_of_memory)
        else:
            patched.setattr("nsa.nn.attention.nsa_attention", runs_out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            layer(x[:, 20:40], cache)
    assert cache.length == 20
    assert torch.equal(layer(x[:, 20:40], cache), layer(x[:, 20:40], sound))
    if counts_reads:
        assert all(torch.equal(getattr(cache.reads, name), total) for name, total in vars(sound.reads).items())


@torch.no_grad()
@pytest.mark.parametrize("failing", ["last block", "head"])
def test_a_model_that_runs_out_of_memory_leaves_the_caches_of_all_layers_as_they_were(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    model = make_model()
    ids = torch.arange(40).view(2, 20) % model.config.vocab_size
    cache, sound = model.new_cache(2), model.new_cache(2)
    for each in (cache, sound):
        model(ids[:, :7], each)
    with monkeypatch.context() as patched:
        faulty = model.blocks[-1].mlp if failing == "last block" else model
        patched.setattr(faulty, "forward" if failing == "last block" else "logits", runs_out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            model(ids[:, 7:], cache)
    assert [layer.length for layer in cache] == [7] * len(cache)
    assert torch.equal(model(ids[:, 7:], cache), model(ids[:, 7:], sound))


def runs_out_of_memory(*_: object, **__: object) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")
