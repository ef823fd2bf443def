"""A row with padding, and a sequence packed behind others, give what they give alone."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
CACHE_NAME = import_module("nsa.hf.cache").CACHE_NAME

LENGTHS = (40, 23, 9)


def padded(ids: torch.Tensor, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows cut to LENGTHS and filled up with token 0, and their mask."""
    rows, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for index, length in enumerate(LENGTHS):
        place = slice(40 - length, None) if side == "left" else slice(0, length)
        rows[index, place], mask[index, place] = ids[index, :length], 1
    return rows, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("has_gradients", [True, False], ids=["gradients", "cache"])
def test_a_padded_row_gives_what_it_gives_alone(
    make_model: Callable[..., Any], ids: torch.Tensor, side: str, has_gradients: bool
) -> None:
    model, (rows, mask) = make_model(), padded(ids, side)
    with torch.set_grad_enabled(has_gradients):
        answer = model(rows, attention_mask=mask)
        assert (answer.get(CACHE_NAME) is None) == has_gradients
        for index, length in enumerate(LENGTHS):
            alone = model(ids[index : index + 1, :length]).logits[0]
            torch.testing.assert_close(answer.logits[index, mask[index] == 1], alone, rtol=0, atol=1e-12)
    assert not answer.logits[mask == 0].any()


def test_gradients_of_padded_rows_are_the_sum_of_those_alone(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, (rows, mask) = make_model(), padded(ids, "left")
    labels = rows.masked_fill(mask == 0, -100)

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True))

    together = gradients(model(rows, attention_mask=mask, labels=labels, num_items_in_batch=torch.tensor(1)).loss)
    parts = [
        gradients(model(row[None, :n], labels=row[None, :n], num_items_in_batch=torch.tensor(1)).loss)
        for row, n in zip(ids, LENGTHS, strict=True)
    ]
    for whole, *each in zip(together, *parts, strict=True):
        if whole is not None:
            torch.testing.assert_close(whole, sum(each), rtol=1e-5, atol=1e-5)  # the loss of transformers is in float32


@pytest.mark.parametrize("marks", ["position_ids", "cu_seq_lens", "both"])
def test_packed_sequences_give_what_they_give_alone(
    make_model: Callable[..., Any], ids: torch.Tensor, marks: str
) -> None:
    model = make_model()
    parts = [row[:length] for row, length in zip(ids, LENGTHS, strict=True)]
    starts = torch.tensor([0, 40, 63, 72], dtype=torch.int32)
    given: dict[str, Any] = {}
    if marks != "cu_seq_lens":
        given |= {"position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None]}
    if marks != "position_ids":
        given |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 40, "max_length_k": 40}
    with torch.no_grad():  # where a cache is made of other rows
        logits = model(torch.cat(parts)[None], **given).logits
    alone = torch.cat([model(part[None]).logits for part in parts], 1)
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-12)


def test_rows_that_are_packed_and_padded_keep_every_sequence_apart(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model = make_model()
    positions = torch.stack([torch.cat((torch.arange(n), torch.arange(40 - n))) for n in (17, 40, 1)])
    mask = torch.ones_like(ids)
    mask[0, 30:] = 0
    logits = model(ids, position_ids=positions, attention_mask=mask).logits
    for row, start, end in ((0, 0, 17), (0, 17, 30), (1, 0, 40), (2, 0, 1), (2, 1, 40)):
        alone = model(ids[row : row + 1, start:end]).logits[0]
        torch.testing.assert_close(logits[row, start:end], alone, rtol=0, atol=1e-12)
    assert not logits[0, 30:].any()


def test_a_token_that_the_mask_leaves_out_is_as_if_it_were_not_there(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[:, 5:9] = 0
    kept = torch.cat((ids[:, :5], ids[:, 9:]), 1)
    torch.testing.assert_close(
        model(ids, attention_mask=mask).logits[mask == 1].view(3, 36, -1), model(kept).logits, rtol=0, atol=1e-12
    )


def test_an_empty_row_gives_zeros_and_changes_no_other(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, mask = make_model(), torch.ones_like(ids)
    mask[1] = 0
    logits = model(ids, attention_mask=mask).logits
    assert not logits[1].any()
    torch.testing.assert_close(logits[[0, 2]], model(ids[[0, 2]]).logits, rtol=0, atol=1e-12)


def test_a_batch_without_a_token_gives_zeros(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    answer = make_model()(ids, attention_mask=torch.zeros_like(ids), output_hidden_states=True)
    assert not answer.logits.any()
    assert len(answer.hidden_states) == 3


def test_hidden_states_of_padded_rows_are_put_back_in_their_places(
    make_model: Callable[..., Any], ids: torch.Tensor
) -> None:
    model, (rows, mask) = make_model(), padded(ids, "left")
    states = model(rows, attention_mask=mask, output_hidden_states=True).hidden_states
    alone = model(ids[2:, :9], output_hidden_states=True).hidden_states
    for state, expected in zip(states, alone, strict=True):
        torch.testing.assert_close(state[2, -9:], expected[0], rtol=0, atol=1e-12)
