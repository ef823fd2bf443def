"""An activation that a constructor is given and that nothing applies is found, and none that may have a use."""

import linecache
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    return run_check(registry.load("FWD268"), small_subject(make, width=DIM, max_length=64, **more))


class Projects(nn.Module):
    """Keeps what it is given beside a projection."""

    def __init__(self, dim: int, given_curve: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.given_curve = nn.Identity() if given_curve is None else given_curve  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def get_config_dict(self) -> dict[str, Any]:
        return {"given_curve": type(self.given_curve).__name__}

    def extra_repr(self) -> str:
        return f"curve={self.given_curve}"

    @staticmethod
    def load(config: dict[str, Any]) -> "Projects":
        config["given_curve"] = nn.ReLU()
        return Projects(**config)


class ByBase(nn.Module):
    def __init__(self, dim: int, based_curve: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.based_curve = based_curve or nn.Identity()  # here


class FromBase(ByBase):
    """Hands it on to its base, and leaves it out."""

    def __init__(self, dim: int, based_curve: nn.Module | None = None) -> None:
        super().__init__(dim, based_curve)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class OfClass(nn.Module):
    def __init__(self, dim: int, act_layer: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.curve_of_class = act_layer()  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class OfFunction(nn.Module):
    def __init__(self, dim: int, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.curve_function = activation  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


CURVES: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class ByName(nn.Module):
    def __init__(self, dim: int, activation: str = "relu") -> None:
        super().__init__()
        assert activation in CURVES
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.curve_by_name = CURVES[activation]()  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class Normed(nn.Module):
    def __init__(self, dim: int, after_norm: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.given_norm = after_norm  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Pools(nn.Module):
    def __init__(self, dim: int, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.given_pool = pool  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def given_module() -> nn.Module:
    return Projects(DIM, given_curve=nn.ReLU())


def given_inside() -> nn.Module:
    return nn.Sequential(Projects(DIM, nn.Tanh()), nn.Linear(DIM, DIM))


def given_base() -> nn.Module:
    return FromBase(DIM, based_curve=nn.SiLU())


def given_class() -> nn.Module:
    return OfClass(DIM, act_layer=nn.SiLU)


def given_partial() -> nn.Module:
    return OfClass(DIM, act_layer=partial(nn.GELU, approximate="tanh"))  # type: ignore[arg-type]


def given_function() -> nn.Module:
    return OfFunction(DIM, activation=F.gelu)


def given_name() -> nn.Module:
    return ByName(DIM, activation="gelu")


def given_norm() -> nn.Module:
    return Normed(DIM, after_norm=nn.LayerNorm(DIM, elementwise_affine=False))


def given_pool() -> nn.Module:
    return Pools(DIM, pool=nn.MaxPool1d(3, 1, 1))


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "module": given_module,
    "inside": given_inside,
    "base": given_base,
    "class": given_class,
    "partial": given_partial,
    "function": given_function,
    "name": given_name,
    "norm": given_norm,
    "pool": given_pool,
}


@pytest.mark.parametrize("make", FAULTY.values(), ids=FAULTY)
def test_a_part_that_is_given_and_never_called_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


def three() -> nn.Module:
    return nn.Sequential(*[Projects(DIM, nn.ReLU()) for _ in range(3)])


def test_several_of_one_line_are_one_finding() -> None:
    (finding,) = examined(three).findings
    assert "(and 2 more)" in finding.message


class Applies(Projects):
    """In its place another name of it is called."""

    def __init__(self, dim: int, applied_curve: nn.Module) -> None:
        super().__init__(dim)
        self.applied_curve = applied_curve
        self.net = nn.Sequential(nn.Linear(dim, dim), applied_curve)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class HandsOn(nn.Module):
    """Keeps a class that its layers are built with."""

    def __init__(self, dim: int, act_layer: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.handed_class = act_layer
        self.net = nn.Sequential(nn.Linear(dim, dim), act_layer(), nn.Linear(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TwoOfThem(nn.Module):
    """Builds two, of which it calls one."""

    def __init__(self, dim: int, act_layer: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.linear, self.first_curve, self.second_of_two = nn.Linear(dim, dim), act_layer(), act_layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.first_curve(self.linear(x))


class AtTimes(nn.Module):
    """Applied under an option, and in long sequences."""

    def __init__(self, dim: int, activation: nn.Module, is_final: bool = False) -> None:
        super().__init__()
        self.linear, self.curve_at_times, self.is_final = nn.Linear(dim, dim), activation, is_final

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.curve_at_times(x) if self.is_final or x.shape[1] > 1000 else x


class Decodes(nn.Module):
    """Applied by a method that no pass comes to."""

    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.curve_of_decoding = nn.Linear(dim, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def decode(self, x: Tensor) -> Tensor:
        return self.curve_of_decoding(self.forward(x))


class ByOthers(nn.Module):
    """Applied by whoever holds it."""

    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.curve_for_holders = nn.Linear(dim, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ByOthers(DIM, activation=nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.curve_for_holders(self.inner(x))


class Fused(nn.Module):
    """Does the same by a function."""

    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.curve_beside_function = nn.Linear(dim, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x))


class ByWord(nn.Module):
    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.curve_by_word = nn.Linear(dim, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        for word in ("linear", "curve_by_word")[: 1 if x.shape[1] < 1000 else 2]:
            x = getattr(self, word)(x)
        return x


class Unasked(nn.Module):
    """Is not called itself: others use its parts."""

    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.curve_of_unasked = nn.Linear(dim, dim), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Unasked(DIM, activation=nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.inner.linear.bias, x.flatten(0, 1), self.inner.linear.weight.T).view_as(x)


def fine_identity() -> nn.Module:
    return Projects(DIM, given_curve=nn.Identity())


def fine_dropout() -> nn.Module:
    return Projects(DIM, given_curve=nn.Dropout(0.0))


def fine_loss() -> nn.Module:
    return Projects(DIM, given_curve=nn.MSELoss())


def fine_not_given() -> nn.Module:
    return Projects(DIM)


def fine_default() -> nn.Module:
    return OfClass(DIM)


def fine_default_by_name() -> nn.Module:
    return OfClass(DIM, act_layer=nn.GELU)


def fine_default_word() -> nn.Module:
    return ByName(DIM, activation="relu")


def fine_two_names() -> nn.Module:
    return Applies(DIM, applied_curve=nn.ReLU())


def fine_handed_on() -> nn.Module:
    return HandsOn(DIM, act_layer=nn.ReLU)


def fine_two_of_them() -> nn.Module:
    return TwoOfThem(DIM, act_layer=nn.ReLU)


def fine_at_times() -> nn.Module:
    return AtTimes(DIM, activation=nn.ReLU())


def fine_decoding() -> nn.Module:
    return Decodes(DIM, activation=nn.ReLU())


def fine_fused() -> nn.Module:
    return Fused(DIM, activation=nn.ReLU())


def fine_by_word() -> nn.Module:
    return ByWord(DIM, activation=nn.ReLU())


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "identity": fine_identity,
    "dropout": fine_dropout,
    "loss": fine_loss,
    "not given": fine_not_given,
    "default": fine_default,
    "default by name": fine_default_by_name,
    "default word": fine_default_word,
    "two names": fine_two_names,
    "handed on": fine_handed_on,
    "two of them": fine_two_of_them,
    "at times": fine_at_times,
    "decoding": fine_decoding,
    "fused": fine_fused,
    "by word": fine_by_word,
    "others": Holder,
    "unasked": Around,
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_a_part_that_has_a_use_or_is_not_given_is_no_finding(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
