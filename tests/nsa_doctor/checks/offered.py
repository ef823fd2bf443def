"""What the built-in layer is given beside, for checks that are about parts which it does not have."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop
from tests.nsa_doctor.small_subjects import small_subject


class Sinusoids(nn.Module):
    """A wave along the sequence, which nothing trains."""

    def forward(self, x: Tensor) -> Tensor:
        """[S, 1], beside x [B, S, D]."""
        return torch.arange(x.shape[1], device=x.device).to(x.dtype).sin()[:, None]


class TwoLayers(nn.Module):
    """What compiles within a second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x).tanh())


def of_two_layers(subject: Subject) -> Subject:
    """In place of the built-in layer, which takes many seconds to compile."""
    given = {"options": subject.options, "max_length": 24, "profile": "full"}
    return small_subject(lambda: TwoLayers(subject.width), width=subject.width, **given)


def with_positions(subject: Subject) -> Subject:
    """Each token is given its place beforehand."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.place = Sinusoids()
        return module

    return replace(
        subject, build=build, forward=lambda module, x: subject.forward(module, x + cast("Any", module).place(x))
    )


def with_attention(subject: Subject) -> Subject:
    """Each token is given the mean of all as well, by how alike they are."""
    attend = nn.functional.scaled_dot_product_attention
    return replace(subject, forward=lambda module, x: subject.forward(module, x) + attend(x, x, x))


class Projected(nn.Module):
    """Attention by projections that are named for what they are, beside a module."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.q, self.k, self.v = inner, *(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def with_projections(subject: Subject) -> Subject:
    """Attention by projections beside it."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(cast("Any", module).inner, x)
        return output + module(x)

    return replace(subject, build=lambda seed: Projected(subject.build(seed), subject.width), forward=forward)


def with_dropout(subject: Subject) -> Subject:
    """A tenth of the tokens' values is dropped beforehand."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.dropped = nn.Dropout(0.1)
        return module

    return replace(
        subject, build=build, forward=lambda module, x: subject.forward(module, cast("Any", module).dropped(x))
    )


class DropPath(nn.Module):
    """Leaves some rows out, and makes the others as much larger."""

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape."""
        return x * (torch.rand(len(x), *(1,) * (x.ndim - 1)) < 0.8) / 0.8 if self.training else x


def with_a_drop_path(subject: Subject) -> Subject:
    """Some rows are zeros beforehand."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.path = DropPath()
        return module

    return replace(subject, build=build, forward=lambda module, x: subject.forward(module, cast("Any", module).path(x)))


class Scaled(nn.Module):
    """A low-rank update of the output, times its factor."""

    def __init__(self, inner: nn.Module, width: int, rank: int = 2) -> None:
        super().__init__()
        self.inner, self.alpha, self.rank, self.scaling = inner, 3, rank, 3 / rank
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        return self.up(self.down(x)) * self.scaling


def with_an_adapter(subject: Subject) -> Subject:
    """A low-rank adapter beside it."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(cast("Any", module).inner, x)
        return output + module(x)

    return replace(subject, build=lambda seed: Scaled(subject.build(seed), subject.width), forward=forward)


class Rested(nn.Module):
    """Attention and a norm, each with its residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        return self.norm(x + self.attention(x))


def with_layers(subject: Subject) -> Subject:
    """Two layers behind it."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.behind = nn.Sequential(Rested(subject.width), Rested(subject.width))
        return module

    return replace(
        subject, build=build, forward=lambda module, x: cast("Any", module).behind(subject.forward(module, x))
    )


class Mixture(nn.Module):
    """Each token's answer by the expert that its router scores highest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, 4), nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        rows = x.flatten(0, 1)
        scores, chosen = self.router(rows).softmax(-1).max(-1)
        answer = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            answer[chosen == number] = scores[chosen == number, None] * expert(rows[chosen == number])
        return answer.view_as(x)


def with_experts(subject: Subject) -> Subject:
    """A mixture of experts beside it."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.mixture = Mixture(subject.width)
        return module

    return replace(
        subject, build=build, forward=lambda module, x: subject.forward(module, x) + cast("Any", module).mixture(x)
    )


class Timed(nn.Module):
    """A module whose answer each row's time makes larger."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """[B, S, D]; t [B]."""
        output: Tensor = self.inner(x)
        return output if t is None else output * (1 + t.to(output)[:, None, None])


def with_a_time(subject: Subject) -> Subject:
    """It may be given a time for each row."""
    return replace(subject, build=lambda seed: Timed(subject.build(seed)), forward=lambda module, x: module(x))


class TimedTokens(Timed):
    """A module that may be given a time for each token, of which it reads how long ago the first was."""

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        output: Tensor = self.inner(x)
        return output if times is None else output * (1 + (times - times[:, :1]).to(output)[..., None])


def with_times(subject: Subject) -> Subject:
    """It may be given a time for each token."""
    return replace(subject, build=lambda seed: TimedTokens(subject.build(seed)), forward=lambda module, x: module(x))


class Rated(nn.Module):
    """A module, with a loss of its own tokens alone."""

    def __init__(self, inner: nn.Module, subject: Subject) -> None:
        super().__init__()
        self.inner, self.call = inner, subject.forward

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.call(self.inner, x)
        return output

    def loss(self, x: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
        whole = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        missing = []
        for row, wanted, length in zip(x, targets, whole.tolist(), strict=True):
            answer = self(row[None, :length])[0].flatten(1).mean(1)
            missing.append((answer - wanted[:length].to(answer)).square().mean())
        return torch.stack(missing).mean()


def with_a_loss_of_targets(subject: Subject) -> Subject:
    """It gives the loss of each row's tokens, as many as there are."""
    return replace(subject, build=lambda seed: Rated(subject.build(seed), subject), forward=lambda module, x: module(x))


class Recurrent(nn.Module):
    """What a cell makes of the tokens, one by one."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.cell = inner, nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.cell(token, state)
            states.append(state)
        return torch.stack(states, 1)


def with_a_cell(subject: Subject) -> Subject:
    """A recurrence behind it."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return cast("Tensor", module(subject.forward(cast("Any", module).inner, x)))

    return replace(subject, build=lambda seed: Recurrent(subject.build(seed), subject.width), forward=forward)


class Optimised(nn.Module):
    """A module that makes its own optimizer."""

    def __init__(self, inner: nn.Module, subject: Subject) -> None:
        super().__init__()
        self.inner, self.call = inner, subject.forward

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        output: Tensor = self.call(self.inner, x)
        return output

    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> torch.optim.Optimizer:
        """Decay for matrices alone."""
        trained = [each for each in self.parameters() if each.requires_grad]
        groups = [
            {"params": [each for each in trained if each.ndim > 1], "weight_decay": weight_decay},
            {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate)


def with_an_optimizer(subject: Subject) -> Subject:
    """It makes an optimizer of all of its parameters."""
    return replace(
        subject, build=lambda seed: Optimised(subject.build(seed), subject), forward=lambda module, x: module(x)
    )


def with_a_choice(subject: Subject) -> Subject:
    """The channels of each token that are largest, and no others, are added once more."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        kept = output.detach().topk(2, dim=-1).indices
        return output + torch.zeros_like(output).scatter(-1, kept, output.gather(-1, kept))

    return replace(subject, forward=forward)


class Pooled(nn.Module):
    """The mean of what a layer makes of each token, given to all of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        return self.layer(x).tanh().mean(1, keepdim=True).expand_as(x)


def with_one_answer(subject: Subject) -> Subject:
    """Another module in its place, of one answer for a row."""
    width = subject.width
    return small_subject(lambda: Pooled(width), width=width, answer=("", (width,)), spec=("bidirectional",))


def with_a_loop(subject: Subject) -> Subject:
    """A training loop with momentum that evaluates, and goes on from its snapshots."""

    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

        def loss_of(batches: list[Tensor]) -> Tensor:
            return torch.stack([subject.forward(module, each).square().mean() for each in batches]).mean()

        def step(batches: list[Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(batches)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def restore(kept: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
            module.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])

        return TrainingLoop(
            step=step,
            evaluate=torch.no_grad()(loss_of),
            snapshot=lambda: (module.state_dict(), optimizer.state_dict()),
            restore=restore,
        )

    return replace(subject, loop=begin)


class Sampler(nn.Module):
    """Keeps the likeliest of a row."""

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        """Of any shape; the rest are minus infinity."""
        return logits.masked_fill(logits < logits.topk(k, -1).values[..., -1:], float("-inf"))


def with_a_sampler(subject: Subject) -> Subject:
    """Something beside it that filters logits."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.chooser = Sampler()
        return module

    return replace(subject, build=build)
