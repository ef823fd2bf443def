"""Caches of transformers hold the past of the model, whatever is done to them between two calls."""

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
hf = import_module("nsa.hf")
CACHE_NAME = import_module("nsa.hf.cache").CACHE_NAME


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


def stepped(model: Any, ids: torch.Tensor, past: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Logits of the tokens, given one by one behind the cache."""
    logits: list[torch.Tensor] = []
    for token in ids.split(1, 1):
        mask = None if mask is None else torch.cat((mask, torch.ones_like(token)), 1)
        logits.append(model(token, cache=past, attention_mask=mask).logits)
    return torch.cat(logits, 1)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_parts_behind_a_cache_give_what_one_pass_gives(
    make_model: Callable[..., Any], ids: torch.Tensor, chunk: int
) -> None:
    model, past, logits = make_model(), None, []
    for part in ids.split(chunk, 1):
        answer = model(part, cache=past, use_cache=True)
        past, logits = answer[CACHE_NAME], [*logits, answer.logits]
    close(torch.cat(logits, 1), model(ids).logits)
    assert past is not None
    assert past.get_seq_length() == 40
    assert past.batch_size == 3


@pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])
def test_a_prompt_is_taken_token_by_token_where_the_environment_says_so(
    make_model: Callable[..., Any], ids: torch.Tensor, is_padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mask, lengths = make_model(), torch.ones_like(ids), []
    if is_padded:
        mask[0, :9] = mask[2, 30:] = 0
    expected = model(ids, attention_mask=mask, output_hidden_states=True)
    model.model.transformer.norm.register_forward_hook(lambda module, given, out: lengths.append(out.shape[1]))
    monkeypatch.setenv("NSA_PREFILL_BATCHED", "0")
    answer = model(ids, attention_mask=mask, output_hidden_states=True)
    assert lengths == [1] * 40
    close(answer.logits, expected.logits)
    assert [layer.lengths() for layer in answer[CACHE_NAME].layers] == [mask.sum(1).tolist()] * 2


KINDS: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: transformers.DynamicCache(config=config),
    "without-a-configuration": lambda config: transformers.DynamicCache(),
    "static": lambda config: transformers.StaticCache(config=config, max_cache_len=40),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_caches_of_transformers_serve(make_model: Callable[..., Any], ids: torch.Tensor, kind: Any) -> None:
    model = make_model()
    past = kind(model.config)
    first = model(ids[:, :30], cache=past).logits
    assert all(isinstance(layer, hf.NSACacheLayer) for layer in past.layers)
    close(torch.cat((first, stepped(model, ids[:, 30:], past)), 1), model(ids).logits)


def test_a_static_cache_has_room_from_the_start_and_no_more(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    past = transformers.StaticCache(config=model.config, max_cache_len=12)
    model(ids[:, :3], cache=past)
    assert all(isinstance(layer, hf.NSAStaticCacheLayer) for layer in past.layers)
    memory = past.layers[0].parts[0].cache.num_bytes()
    model(ids[:, 3:12], cache=past)
    assert past.layers[0].parts[0].cache.num_bytes() == memory
    assert past.get_max_length() == 12
    with pytest.raises(ValueError, match="a static cache of 12 tokens has room for 0 more, got 1"):
        model(ids[:, 12:13], cache=past)
    assert past.get_seq_length() == 12


@pytest.mark.parametrize("indices", [[2, 0, 0, 1], [1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])
def test_rows_are_chosen(
    make_model: Callable[..., Any], ids: torch.Tensor, indices: list[int], is_padded: bool
) -> None:
    model, mask, rows = make_model(), torch.ones_like(ids), torch.tensor(indices)
    if is_padded:
        mask[0, :11] = mask[2, :20] = 0
    past = model(ids, attention_mask=mask, use_cache=True)[CACHE_NAME]
    past.batch_select_indices(rows)
    after = torch.randint(29, (len(indices), 6))
    expected = model(ids[rows], attention_mask=mask[rows], use_cache=True)[CACHE_NAME]
    close(stepped(model, after, past, mask[rows]), stepped(model, after, expected, mask[rows]))


def test_rows_are_repeated_one_behind_the_other(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, after = make_model(), torch.randint(29, (6, 3))
    past = model(ids, use_cache=True)[CACHE_NAME]
    past.batch_repeat_interleave(2)
    expected = model(ids.repeat_interleave(2, 0), use_cache=True)[CACHE_NAME]
    close(stepped(model, after, past), stepped(model, after, expected))


@pytest.mark.parametrize("removed", [0, 1, 9, 15])
def test_the_newest_tokens_are_taken_back(make_model: Callable[..., Any], ids: torch.Tensor, removed: int) -> None:
    model = make_model()
    past = model(ids[:, :25], use_cache=True)[CACHE_NAME]
    past.activate_past_recording()
    model(ids[:, 25:], cache=past)
    past.crop(-removed)
    assert past.get_seq_length() == 40 - removed
    after = torch.randint(29, (3, 5))
    whole = model(torch.cat((ids[:, : 40 - removed], after), 1)).logits[:, 40 - removed :]
    close(stepped(model, after, past), whole)


def test_what_cannot_be_taken_back_is_said(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    past = model(ids, use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match="num_tokens must be 0 to 0, those added since record_past, got 2"):
        past.crop(-2)
    with pytest.raises(ValueError, match="tokens_to_remove must be negative"):
        past.crop(30)
    mask[1, 36] = 0
    past = transformers.DynamicCache(config=model.config)
    past.activate_past_recording()
    model(ids, attention_mask=mask, cache=past)
    with pytest.raises(ValueError, match="4 columns cannot be taken back: 3 hold a token of every row"):
        past.crop(-4)
    past.crop(-3)
    assert past.get_seq_length() == 37


def test_rows_padded_at_different_lengths_are_stepped_as_they_would_be_alone(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[0, :11] = mask[2, :31] = 0
    past = model(ids, attention_mask=mask, use_cache=True)[CACHE_NAME]
    assert past.get_seq_length() == 40
    assert past.layers[0].lengths() == [29, 40, 9]
    after = torch.randint(29, (3, 12))
    logits = stepped(model, after, past, mask)
    for row, start in enumerate((11, 0, 31)):
        alone = model(torch.cat((ids[row : row + 1, start:], after[row : row + 1]), 1)).logits[0, 40 - start :]
        close(logits[row], alone)


def test_padding_behind_a_cache_parts_rows_that_were_together(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[1, 30:33] = 0
    past = model(ids[:, :30], use_cache=True)[CACHE_NAME]
    answer = model(ids[:, 30:], attention_mask=mask, cache=past)
    close(answer.logits[[0, 2]], model(ids[[0, 2]]).logits[:, 30:])
    alone = torch.cat((ids[1:2, :30], ids[1:2, 33:]), 1)
    close(answer.logits[1, 3:], model(alone).logits[0, 30:])
    assert past.layers[1].lengths() == [40, 37, 40]


def test_a_copy_and_a_reset_cache_are_of_their_own(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    past = model(ids[:, :30], use_cache=True)[CACHE_NAME]
    copied = deepcopy(past)
    expected = stepped(model, ids[:, 30:], past)
    past.reset()
    assert past.get_seq_length() == 0
    close(stepped(model, ids[:, 30:], copied), expected)
    close(model(ids, cache=past).logits, model(ids).logits)


def test_a_call_that_raises_adds_nothing(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[0, :7] = 0
    past = model(ids[:, :30], attention_mask=mask[:, :30], use_cache=True)[CACHE_NAME]
    hook = model.model.transformer.norm.register_forward_pre_hook(lambda module, given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids[:, 30:], attention_mask=mask, cache=past)
    hook.remove()
    assert past.get_seq_length() == 30
    assert all(layer.lengths() == [23, 30, 30] for layer in past.layers)
    logits = model(ids[:, 30:], attention_mask=mask, cache=past).logits
    close(logits, model(ids, attention_mask=mask).logits[:, 30:])


def test_caches_of_another_kind_are_refused_by_name(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    other = transformers.LlamaConfig(num_hidden_layers=2)
    for past, message in (
        (transformers.DynamicCache(config=other), "must have 2 layers of NSACacheLayer, got 2 of DynamicLayer"),
        (transformers.StaticCache(config=other, max_cache_len=50), "got 2 of StaticLayer"),
        (((ids, ids),) * 2, f"{CACHE_NAME} must be a Cache of transformers, got tuple"),
    ):
        with pytest.raises(ValueError, match=message):
            model(ids, cache=past)
    assert transformers.QuantizedCache  # its layers need a package that computes them
    past = model(ids, use_cache=True)[CACHE_NAME]
    for call in (lambda: past.update(ids, ids, 0), past.layers[0].offload):
        with pytest.raises(NotImplementedError, match="a cache of this model"):
            call()


@pytest.mark.parametrize("inner", [False, True], ids=["with-head", "without"])
def test_both_names_of_a_cache_serve_and_not_together(
    make_model: Callable[..., Any], ids: torch.Tensor, *, inner: bool
) -> None:
    model = make_model()
    model = model.model if inner else model
    expected = model(ids)[0][:, 30:]
    for name in ("cache", "past_key_values"):
        past = model(ids[:, :30], use_cache=True)[CACHE_NAME]
        answer = model(ids[:, 30:], **{name: past})
        close(answer[0], expected)
        assert answer[CACHE_NAME] is past
    with pytest.raises(ValueError, match="give one of them, got both"):
        model(ids[:, :1], cache=past, past_key_values=past)


def test_a_mask_that_contradicts_the_cache_is_refused(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[0, :7] = 0
    past = model(ids[:, :30], attention_mask=mask[:, :30], use_cache=True)[CACHE_NAME]
    with pytest.raises(
        ValueError, match=r"must mark the tokens that the cache holds, \[23, 30, 30\], got \[30, 30, 30\]"
    ):
        model(ids[:, 30:], attention_mask=torch.ones_like(ids), cache=past)
    with pytest.raises(ValueError, match="position_ids must count the tokens of each row"):
        model(ids[:, 30:], attention_mask=mask, cache=past, position_ids=torch.arange(30, 40)[None])


def test_a_transformers_that_is_too_old_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    internal = import_module("nsa.hf.internal")
    monkeypatch.setattr(internal, "CacheLayerMixin", object)
    with pytest.raises(ImportError, match=r"nsa\.hf needs transformers 5\.23 or newer, .* got "):
        internal.require_named_layers()
