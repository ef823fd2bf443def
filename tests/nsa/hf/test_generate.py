"""`generate` of transformers with the model's own cache: every way of decoding gives what passes without one give."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch

import nsa

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
hf = import_module("nsa.hf")
CACHE_NAME = import_module("nsa.hf.cache").CACHE_NAME


NEW = 14


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def greedy(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The argmax of whole passes, token by token."""
    for _ in range(NEW):
        ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)), 1)
    return ids


def generated(model: Any, ids: torch.Tensor, **how: Any) -> torch.Tensor:
    how = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": None} | how
    how.setdefault("attention_mask", torch.ones_like(ids))
    made: torch.Tensor = model.generate(ids, **how)
    return made


@pytest.mark.parametrize(
    "how", [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 7}], ids=str
)
def test_greedy_decoding_takes_the_argmax_of_whole_passes(
    make_model: Callable[..., Any], ids: torch.Tensor, how: dict[str, Any]
) -> None:
    model = make_model()
    made = generated(model, ids, **how)
    assert torch.equal(made, greedy(model, ids))
    assert torch.equal(made, nsa.generate(hf.to_transformer(model), ids, NEW))


def test_rows_padded_on_the_left_continue_as_they_would_alone(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[0, :13] = mask[2, :31] = 0
    made = generated(model, ids * mask, attention_mask=mask)
    for row, start in enumerate((13, 0, 31)):
        assert torch.equal(made[row, start:], greedy(model, ids[row : row + 1, start:])[0])


@pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("how", [{}, {"num_return_sequences": 3}, {"early_stopping": True, "eos_token_id": 5}], ids=str)
def test_beams_are_those_that_are_found_without_a_cache(
    make_model: Callable[..., Any], ids: torch.Tensor, is_padded: bool, how: dict[str, Any]
) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    if is_padded:
        mask[0, :13] = mask[2, :31] = 0
    how |= {"num_beams": 4, "attention_mask": mask, "return_dict_in_generate": True, "output_scores": True}
    made, expected = generated(model, ids, **how), generated(model, ids, use_cache=False, **how)
    assert torch.equal(made.sequences, expected.sequences)  # type: ignore[attr-defined]
    torch.testing.assert_close(made.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-12)  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_assistant_tokens", [1, 5, 12])
def test_an_assistant_changes_nothing_but_the_number_of_passes(
    make_model: Callable[..., Any], ids: torch.Tensor, num_assistant_tokens: int
) -> None:
    model, assistant = make_model(), make_model(n_layers=1)
    assistant.generation_config.num_assistant_tokens = num_assistant_tokens
    assert torch.equal(generated(model, ids[:1], assistant_model=assistant), greedy(model, ids[:1]))


def test_what_an_agreeing_assistant_proposes_is_taken_at_once(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, calls = make_model(), []
    assistant = hf.from_transformer(hf.to_transformer(model)).eval()
    assistant.generation_config.num_assistant_tokens, assistant.generation_config.assistant_confidence_threshold = (
        6,
        0.0,
    )
    model.model.register_forward_hook(lambda module, given, answer: calls.append(1))
    made = generated(model, ids[:1], assistant_model=assistant)
    assert len(calls) == 2  # of 7 tokens each, the last of which it takes itself
    assert torch.equal(made, greedy(model, ids[:1]))


@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 4}], ids=str)
def test_tokens_proposed_by_the_prompt_change_nothing(
    make_model: Callable[..., Any], ids: torch.Tensor, how: dict[str, Any]
) -> None:
    model, repeated = make_model(), ids[:1, :10].repeat(1, 4)
    assert torch.equal(generated(model, repeated, **how), greedy(model, repeated))


def test_sampling_draws_the_same_with_and_without_a_cache(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, drawn = make_model(), []
    for use_cache in (True, False):
        torch.manual_seed(5)
        drawn.append(generated(model, ids, do_sample=True, top_k=9, temperature=1.5, use_cache=use_cache))
    assert torch.equal(*drawn)


def test_a_conversation_goes_on_behind_its_cache(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    first = generated(model, ids[:, :20], return_dict_in_generate=True)
    more = torch.cat((first.sequences, ids[:, 20:]), 1)  # type: ignore[attr-defined]
    past = first[CACHE_NAME]
    assert torch.equal(generated(model, more, **{CACHE_NAME: past}), greedy(model, more))


def test_embeddings_may_be_the_prompt(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    made = model.generate(
        inputs_embeds=model.get_input_embeddings()(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    assert torch.equal(made, greedy(model, ids)[:, 40:])


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_embeddings_are_decoded_as_their_tokens_are(
    make_model: Callable[..., Any], ids: torch.Tensor, how: dict[str, Any]
) -> None:
    model, how = make_model(), how | {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    made = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **how)
    assert torch.equal(made, model.generate(ids, **how)[:, 40:])


def test_what_each_step_gives_is_returned_where_asked_for(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    asked = {"output_scores": True, "output_logits": True, "output_hidden_states": True}
    made: Any = generated(model, ids, return_dict_in_generate=True, **asked)
    whole = model(made.sequences[:, :-1]).logits[:, 39:]
    torch.testing.assert_close(torch.stack(made.logits, 1), whole.float(), rtol=0, atol=1e-6)  # kept in float32
    assert len(made.scores) == len(made.hidden_states) == NEW
    assert [tuple(state.shape) for state in made.hidden_states[0]] == [(3, 40, 24)] * 3
    assert [tuple(state.shape) for state in made.hidden_states[1]] == [(3, 1, 24)] * 3
    assert made[CACHE_NAME].get_seq_length() == 40 + NEW - 1


def test_a_text_begins_with_the_first_token_where_there_is_no_prompt(make_model: Callable[..., Any]) -> None:
    model = make_model()
    made = model.generate(bos_token_id=3, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    assert torch.equal(made, greedy(model, torch.tensor([[3]])))


def test_rows_that_have_ended_are_filled_up_and_change_no_other(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model = make_model()
    expected = greedy(model, ids)
    end = int(expected[1, 45])
    made = generated(model, ids, eos_token_id=end)
    for row, whole in zip(made, expected, strict=True):
        stops = (whole[40:] == end).nonzero()
        length = 41 + int(stops[0]) if len(stops) else whole.shape[0]
        assert torch.equal(row[:length], whole[:length])
        assert not row[length:].any()


@pytest.mark.parametrize("how", [{}, {"num_return_sequences": 2}, {"num_beams": 3}], ids=str)
def test_only_the_last_logits_are_computed_of_a_prompt(
    make_model: Callable[..., Any], ids: torch.Tensor, how: dict[str, Any]
) -> None:
    model, lengths = make_model(), []
    model.lm_head.register_forward_hook(lambda module, given, out: lengths.append(out.shape[1]))
    generated(model, ids, do_sample="num_return_sequences" in how, **how)
    assert set(lengths) == {1}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"cache_implementation": "offloaded"}, "a cache of this model cannot be offloaded"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ],
    ids=["offloaded", "attentions"],
)
def test_what_it_cannot_do_is_refused_by_name(
    make_model: Callable[..., Any], ids: torch.Tensor, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generated(make_model(), ids, **how)
