"""Pairs that an axis asked for elsewhere hides no longer, and ones that a function is handed on purpose."""

import torch
from torch import Tensor

from tests.nsa_doctor.checks.test_broadcast_losses import Critic, examined, is_marked, rewards, step_of


def of_advantages(net: Critic, x: Tensor) -> Tensor:
    """Returns have an axis for the values alone."""
    returns, values = rewards(x).unsqueeze(-1), net.values(x)
    advantages = returns - values
    likelihoods = net(x).mean((1, 2))
    return advantages.square().mean() - (likelihoods * advantages.detach()).mean()  # here


def huber_by_hand(net: Critic, x: Tensor) -> Tensor:
    error = net.values(x) - rewards(x)  # here
    return torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5).mean()


def kernel(one: Tensor, other: Tensor) -> Tensor:
    return torch.exp(-(one - other).pow(2))


def discrepancy(net: Critic, x: Tensor) -> Tensor:
    values, wanted = net.values(x).squeeze(-1), rewards(x)
    return kernel(values[:, None], values).mean() - 2 * kernel(values[:, None], wanted).mean()


def test_an_axis_that_is_asked_for_once_is_used_up() -> None:
    assert is_marked(examined(Critic, train_step=step_of(of_advantages)))


def test_a_choice_between_forms_of_an_error_is_followed() -> None:
    assert is_marked(examined(Critic, train_step=step_of(huber_by_hand)))


def test_a_function_may_be_handed_an_axis() -> None:
    assert examined(Critic, train_step=step_of(discrepancy)).findings == ()
