"""Functions that take deviations for deviations and variances for variances, in forms that are in use."""

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Autoencoder:
    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def divergence(self, mu: Tensor, logvar: Tensor) -> Tensor:
        return mu.pow(2).add_(logvar.exp()).mul_(-1).add_(1).add_(logvar).sum().mul_(-0.5)


class NamedForAnother:
    """Whose logvar is the logarithm of a deviation wherever it is used."""

    def sample(self, mu: Tensor, logvar: Tensor) -> Tensor:
        return mu + logvar.exp() * torch.randn_like(mu)

    def divergence(self, mu: Tensor, logvar: Tensor) -> Tensor:
        return -0.5 * (1 + 2 * logvar - mu**2 - (2 * logvar).exp()).sum()


class Diagonal:
    def __init__(self, parameters: Tensor) -> None:
        self.mean, self.logvar = parameters.chunk(2, dim=1)
        self.logvar = torch.clamp(self.logvar, -30.0, 20.0)
        self.std = torch.exp(0.5 * self.logvar)
        self.var = torch.exp(self.logvar)

    def sample(self) -> Tensor:
        return self.mean + self.std * torch.randn(self.mean.shape)

    def kl(self) -> Tensor:
        return 0.5 * torch.sum(torch.pow(self.mean, 2) + self.var - 1.0 - self.logvar)

    def nll(self, x: Tensor) -> Tensor:
        return 0.5 * torch.sum(math.log(2 * math.pi) + self.logvar + torch.pow(x - self.mean, 2) / self.var)


class Squashed(nn.Module):
    def forward(self, x: Tensor) -> Normal:
        mean, log_std = x.chunk(2, -1)
        log_std = torch.tanh(log_std)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)
        return Normal(mean, log_std.exp())


class Fixed:
    def __init__(self, size: int, action_std: float) -> None:
        self.action_var = torch.full((size,), action_std * action_std)

    def act(self, mean: Tensor) -> MultivariateNormal:
        return MultivariateNormal(mean, torch.diag(self.action_var).unsqueeze(0))


def a_likelihood(mean: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mean, y, sigma.square(), full=True)


def of_another_name(mean: Tensor, y: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Whose std is a variance in both."""
    return F.gaussian_nll_loss(mean, y, std), mean + std.sqrt() * torch.randn_like(mean)


def variance_as_variance(mean: Tensor, y: Tensor, log_var: Tensor) -> Tensor:
    var = log_var.exp()
    return F.gaussian_nll_loss(mean, y, var) + ((y - mean) ** 2 * torch.exp(-log_var) + log_var).mean()


def diffused(mean: Tensor, log_variance: Tensor, t: Tensor) -> Tensor:
    noise = torch.randn_like(mean)
    mask = (t > 0).float()
    return mean + mask * (0.5 * log_variance).exp() * noise


def noised(x: Tensor, sigma: Tensor, dt: float) -> Tensor:
    x = x + sigma**2 * x * dt
    return x + sigma * math.sqrt(dt) * torch.randn_like(x)


def already_scaled(x: Tensor, variance: Tensor) -> Tensor:
    variance = variance.sqrt() * torch.randn_like(x)
    return x + variance


def rescaled(mean: Tensor, variance: Tensor, temperature: float) -> Normal:
    return Normal(mean, variance.clamp_min(1e-6).sqrt() * temperature)


def of_roots(mean: Tensor, variance: Tensor) -> Independent:
    std = variance**0.5
    return Independent(Normal(mean, std.expand_as(mean)), 1)


def by_branches(mean: Tensor, spread: Tensor, is_log: bool) -> Normal:
    std = spread
    if is_log:
        std = spread.exp()
    return Normal(mean, std)


def changed_on_the_way(mean: Tensor, var: Tensor) -> Normal:
    var = var.sqrt()
    return Normal(mean, var)


def of_a_matrix(mean: Tensor, sigma: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean, covariance_matrix=sigma)


def second_of_two(mean: Tensor, std2: Tensor, inv_var: Tensor) -> tuple[Normal, Tensor]:
    return Normal(mean, std2), mean + inv_var * torch.randn_like(mean)


def another_distribution(mean: Tensor, var: Tensor) -> Laplace:
    return Laplace(mean, (var / 2).sqrt())


def narrow(mean: Tensor, y: Tensor, width: Tensor) -> Tensor:
    return torch.exp(-((y - mean) ** 2) / (2 * width)) + random.gauss(0.0, 0.1)


def bandwidth(x: Tensor, y: Tensor, sigma: float) -> Tensor:
    return torch.exp(-((x - y) ** 2) / sigma)


def variable(var: Tensor, eps: float = 1e-5) -> Tensor:
    return (var + eps).rsqrt() * var


def started(linear: nn.Linear, std: float = 0.02) -> None:
    nn.init.trunc_normal_(linear.weight, std=std / math.sqrt(2), a=-2 * std, b=2 * std)
    linear.weight.data.normal_(mean=0.0, std=std)


def predicted(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, raw = x.chunk(2, -1)
    sigma = F.softplus(raw) + 1e-4
    return mean, sigma


def calibrated(x: Tensor, y: Tensor) -> Tensor:
    mean, sigma = predicted(x)
    return ((y - mean) / sigma).abs() + Normal(mean, sigma).log_prob(y)


def named_for_what_it_was(mean: Tensor, beta: Tensor) -> Tensor:
    variance = torch.sqrt(beta).clamp(min=1e-5)
    return mean + variance * torch.randn_like(mean)


def named_for_what_it_was_by_a_power(mean: Tensor, y: Tensor, raw: Tensor) -> Tensor:
    std = raw**2 + 1e-6
    return F.gaussian_nll_loss(mean, y, std)


def named_for_what_it_was_by_half(mean: Tensor, raw: Tensor) -> Tensor:
    var = torch.exp(0.5 * raw)
    return Normal(mean, var).rsample()


def of_a_number(x: Tensor) -> Tensor:
    var = 0.1
    return x + var * torch.randn_like(x)
