"""Variances that are taken for standard deviations, and the reverse (FWD276)."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nsa_doctor.probes.model.own_files import OwnDefinition, definitions_of
from nsa_doctor.probes.numerics.mistaken_spreads import Mistaken, mistaken_in
from nsa_doctor.probes.numerics.spread_names import Named, named
from tests.nsa_doctor.checks import faulty_spreads, right_spreads

NAMES = {"torch": torch, "F": F, "nn": nn, "Normal": torch.distributions.Normal}


def pieces(module: ModuleType) -> list[str]:
    """The names of its functions and classes."""
    tree = ast.parse(inspect.getsource(module))
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def of_piece(module: ModuleType, name: str) -> list[OwnDefinition]:
    file = str(module.__file__)
    found = definitions_of(Path(file).read_text(encoding="utf-8"), file, vars(module))
    return [each for each in found if each.name.partition(".")[0] == name]


def said_of(*files: str) -> list[Mistaken]:
    found = [each for at, text in enumerate(files) for each in definitions_of(text, f"{at}.py", NAMES)]
    return list(mistaken_in(found))


def marked(module: ModuleType, name: str) -> list[int]:
    lines, first = inspect.getsourcelines(getattr(module, name))
    return [first + at for at, line in enumerate(lines) if line.rstrip().endswith("# here")]


@pytest.mark.parametrize("name", [name for name in pieces(faulty_spreads) if marked(faulty_spreads, name)])
def test_a_variance_for_a_deviation_is_found_at_its_line(name: str) -> None:
    found = list(mistaken_in(of_piece(faulty_spreads, name)))
    assert [(each.place.line, each.is_certain) for each in found] == [
        (line, True) for line in marked(faulty_spreads, name)
    ]


@pytest.mark.parametrize("name", pieces(right_spreads))
def test_what_fits_is_silent(name: str) -> None:
    assert list(mistaken_in(of_piece(right_spreads, name))) == []


def test_what_a_divergence_shows_is_said() -> None:
    (found,) = mistaken_in(of_piece(faulty_spreads, "Autoencoder"))
    assert "exp(logvar), a variance; it is used as a variance at faulty_spreads.py:" in found.what


HEAD = """
def predict(model, x):
    mean, raw = model(x).chunk(2, -1)
    sigma = F.softplus(raw)
    return mean, sigma

def drawn(model, x):
    mean, sigma = predict(model, x)
    return mean + {drawn} * torch.randn_like(mean)
"""
LOSS = """
def loss(model, x, y):
    mean, sigma = predict(model, x)
    return density(mean, sigma, y)

def density(mean, s, y):
    return F.gaussian_nll_loss(mean, y, s)

def likelihood(mean, sigma, y):
    return F.gaussian_nll_loss(mean, y, sigma)

def other(model, x, y):
    mean, sigma = predict(model, x)
    return likelihood(mean, sigma, y)
"""


def test_a_sigma_that_is_drawn_with_elsewhere_is_a_deviation() -> None:
    (found,) = said_of(HEAD.format(drawn="sigma"), LOSS)
    assert (found.place.function, found.is_certain) == ("likelihood", True)
    assert "it is used as a standard deviation at 0.py:9" in found.what


def test_a_sigma_that_is_a_variance_everywhere_is_silent() -> None:
    assert said_of(HEAD.format(drawn="sigma.sqrt()"), LOSS) == []


def test_a_sigma_that_nothing_else_uses_is_a_note() -> None:
    (found,) = said_of(LOSS)
    assert (found.place.function, found.is_certain) == ("likelihood", False)


def test_a_scale_that_nothing_else_uses_is_silent() -> None:
    assert said_of("def loss(mean, scale, y):\n    return F.gaussian_nll_loss(mean, y, scale)\n") == []


def test_a_function_of_its_own_by_a_known_name_is_none_of_them() -> None:
    text = "def drawn(mean, var):\n    return Normal(mean, var)\n"
    assert said_of(text) != []
    found = definitions_of(text, "0.py", {"Normal": lambda mean, var: (mean, var)})
    assert list(mistaken_in(list(found))) == []


def test_a_class_of_its_own_by_the_name_of_a_loss_is_not_that_loss() -> None:
    text = "def loss(mean, y, std):\n    criterion = GaussianNLLLoss()\n    return criterion(mean, y, std)\n"
    for kind, num_found in ((nn.GaussianNLLLoss, 1), (type("GaussianNLLLoss", (nn.Module,), {}), 0)):
        found = definitions_of(text, "0.py", {"GaussianNLLLoss": kind})
        assert len(list(mistaken_in(list(found)))) == num_found


@pytest.mark.parametrize(
    ("name", "power", "is_log"),
    [
        ("std", 1, False),
        ("noise_std", 1, False),
        ("pred_stddev", 1, False),
        ("sigma_t", 1, False),
        ("posterior_variance", 2, False),
        ("sigma_sq", 2, False),
        ("log_std", 1, True),
        ("logvar", 2, True),
        ("z_log_var", 2, True),
        ("logVar", 2, True),
        ("lnvar", 2, True),
    ],
)
def test_what_names_say(name: str, power: int, is_log: bool) -> None:
    says = named(name)
    assert says is not None
    assert (says.power, says.is_log) == (power, is_log)


@pytest.mark.parametrize("name", ["std2", "inv_std", "sqrt_var", "var_scale", "Sigma", "raw_std", "variation", "width"])
def test_names_that_say_nothing(name: str) -> None:
    assert named(name) is None


def test_a_loose_name_is_not_sure() -> None:
    assert named("sigma") == Named(1, False, False)
