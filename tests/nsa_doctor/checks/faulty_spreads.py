"""Functions that take a variance for a standard deviation, or the reverse, at the lines marked `here`."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.distributions import MultivariateNormal, Normal


class Autoencoder:
    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(logvar)  # here
        eps = torch.randn_like(std)
        return mu + eps * std

    def loss(self, x: Tensor, y: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
        return F.mse_loss(x, y) - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def drawn_by_methods(mu: Tensor, logvar: Tensor) -> Tensor:
    std = logvar.exp_()  # here
    eps = torch.empty_like(std).normal_()
    return eps.mul(std).add_(mu)


def drawn_in_place(x: Tensor, variance: Tensor) -> Tensor:
    x += torch.randn(x.shape) * variance  # here
    return x


def a_normal(mu: Tensor, log_var: Tensor) -> Normal:
    return Normal(mu, log_var.clamp(-8, 8).exp() + 1e-6)  # here


def a_normal_by_name(mu: Tensor, var: Tensor) -> Tensor:
    return distributions.Normal(loc=mu, scale=var[:, None]).rsample()  # here


def of_the_data(x: Tensor) -> Tensor:
    return torch.normal(x.mean(0), x.var(0))  # here


def of_numpy(mean: float, variance: float) -> float:
    return float(np.random.normal(mean, variance))  # here


def of_python(mean: float, std: float) -> float:
    return random.gauss(mean, std**2)  # here


def a_likelihood(mean: Tensor, y: Tensor, log_std: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mean, y, log_std.exp())  # here


def of_a_logarithm(mean: Tensor, y: Tensor, log_var: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mean, y, var=log_var)  # here


def never_exponentiated(mu: Tensor, logvar: Tensor) -> Normal:
    half = 0.5 * logvar
    return Normal(mu, half)  # here


def a_covariance(mean: Tensor, std: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean, torch.diag_embed(std))  # here


def a_factor(mean: Tensor, std: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean, scale_tril=torch.diag_embed(std.square()))  # here


def squared(mean: Tensor, sigma: Tensor) -> Tensor:
    return mean + sigma**2 * torch.randn_like(mean)  # here


def by_hand(mean: Tensor, y: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.randn_like(mean)
    drawn = mean + sigma * noise
    return ((y - mean) ** 2 / (2 * sigma) + sigma.log()).sum(), drawn  # here


def said(mean: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
    """-log N(y; mean, sigma^2)."""
    return F.gaussian_nll_loss(mean, y, sigma)  # here


def started(linear: nn.Linear) -> None:
    variance = 2.0 / linear.in_features
    nn.init.normal_(linear.weight, 0.0, variance)  # here


class Policy:
    """Whose loss and whose actions take one parameter for two things."""

    def __init__(self) -> None:
        self.nll = nn.GaussianNLLLoss()
        self.sigma = torch.ones(3)

    def loss(self, mean: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.nll(mean, y, self.sigma.expand_as(mean))  # here
        return loss

    def act(self, mean: Tensor) -> Tensor:
        return Normal(mean, self.sigma).sample()


def density(mean: Tensor, spread: Tensor, y: Tensor) -> Tensor:
    return Normal(mean, spread).log_prob(y)
