"""AdamW over the right parameters, and gradients cut to their length."""

import pytest
import torch

from nsa import Transformer
from nsa.train.optimizer import clip_gradients, gradient_norm, make_optimizer, not_finite_gradients


@pytest.fixture
def model(config):
    return Transformer(config().model)


def test_matrices_alone_decay(model, config):
    optimizer = make_optimizer(model, config(weight_decay=0.3).train)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (1 - 1e-2 * 0.3) if parameter.dim() >= 2 else before[name]
        torch.testing.assert_close(parameter.detach(), expected, msg=name)


def test_every_parameter_is_in_one_group(model, config):
    groups = make_optimizer(model, config().train).param_groups
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())


def test_the_norm_is_of_all_gradients_together(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    size = sum(parameter.numel() for parameter in model.parameters())
    assert float(gradient_norm(model.parameters())) == pytest.approx(size**0.5)


@pytest.mark.parametrize(("limit", "expected"), [(0.0, 1.0), (1e9, 1.0), (1e-3, None)], ids=["off", "far", "cut"])
def test_clipping_cuts_what_is_longer_and_nothing_else(model, limit, expected):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = gradient_norm(model.parameters())
    clip_gradients(model.parameters(), limit, norm)
    if expected is None:
        assert float(gradient_norm(model.parameters())) == pytest.approx(limit, rel=1e-2)
    else:
        assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model.parameters())


def test_parameters_with_a_gradient_that_is_not_finite_are_named(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.norm.weight.grad[3] = torch.inf
    model.blocks[0].mlp.down.weight.grad[0, 0] = torch.nan
    assert not_finite_gradients(model) == ["blocks.0.mlp.down.weight", "norm.weight"]
