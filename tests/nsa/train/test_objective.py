"""What is minimised: the next token, never across documents, each target counted once."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from nsa import Transformer
from nsa.train import objective
from nsa.train.objective import Objective, next_tokens, num_targets


@pytest.fixture
def made(config):
    model = Transformer(config().model)
    tokens = torch.randint(0, 32, (3, 17))
    documents = torch.zeros(3, 17, dtype=torch.int32)
    documents[1, 6:] = 1
    documents[2] = torch.arange(17)  # every token a document of its own
    return model, tokens, documents


def test_a_target_is_the_token_after_and_never_one_of_another_document(made):
    _, tokens, documents = made
    targets = next_tokens(tokens, documents)
    assert torch.equal(targets[0], tokens[0, 1:])
    assert targets[1, 5] == -100
    assert torch.equal(targets[1, 6:], tokens[1, 7:])
    assert (targets[2] == -100).all()
    assert num_targets(documents) == 16 + 15


def test_the_loss_is_the_sum_over_targets(made):
    model, tokens, documents = made
    logits = model(tokens[:, :-1])
    expected = cross_entropy(logits[0], tokens[0, 1:], reduction="sum")
    kept = torch.tensor([step for step in range(16) if step != 5])
    expected = expected + cross_entropy(logits[1, kept], tokens[1, 1:][kept], reduction="sum")
    torch.testing.assert_close(Objective(model)(tokens, documents), expected)


def test_the_last_token_has_no_gradient_and_a_boundary_none(made):
    model, tokens, documents = made
    seen = []
    handle = model.norm.register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(outputs[0]))
    Objective(model)(tokens, documents).backward()
    handle.remove()
    (gradient,) = seen
    assert gradient.shape[1] == 16
    assert gradient[1, 5].abs().sum() == 0
    assert gradient[2].abs().sum() == 0
    assert (gradient[0].abs().sum(-1) > 0).all()


def test_logits_made_in_parts_give_the_same(made, monkeypatch):
    model, tokens, documents = made
    whole = Objective(model)(tokens, documents)
    whole.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    monkeypatch.setattr(objective, "_MOST_LOGITS", 32 * 7)  # 7 rows at a time of 48
    parts = Objective(model)(tokens, documents)
    parts.backward()
    torch.testing.assert_close(parts, whole)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


def test_recomputing_blocks_changes_nothing(made, config):
    model, tokens, documents = made
    loss = Objective(model)(tokens, documents)
    loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    calls = []
    model.blocks[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    again = Objective(model, checkpointing=True)(tokens, documents)
    again.backward()
    assert len(calls) == 2
    assert torch.equal(again, loss)
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in model.named_parameters())


@pytest.mark.gpu
def test_the_loss_in_half_precision_is_that_of_its_logits_in_float32(made):
    model, tokens, documents = (each.cuda() for each in made)
    with torch.autocast("cuda", torch.bfloat16):
        loss = Objective(model)(tokens, documents)
        logits = model(tokens[:, :-1])
    targets = next_tokens(tokens, documents)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(loss, cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum"))
