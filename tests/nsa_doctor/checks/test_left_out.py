"""An optimizer that leaves parameters out is found at the line that does; what is left out on purpose is silent."""

import copy
import importlib
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.oddly_grouped import DIM, FAULTY, Base, Generated, Groups
from tests.nsa_doctor.small_subjects import small_subject


class Complete(Base):
    """nanoGPT's."""

    def configure_optimizers(self, weight_decay: float, learning_rate: float, betas: Any, device_type: str) -> Any:
        named = {n: p for n, p in self.named_parameters() if p.requires_grad}
        decay = [p for n, p in named.items() if p.dim() >= 2]
        no_decay = [p for n, p in named.items() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
        return AdamW(groups, lr=learning_rate, betas=betas)


class Frozen(Complete):
    """A layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.into.requires_grad_(False)


class FreezesThen(Base):
    """Freezes when it makes its optimizer."""

    def configure_optimizers(self) -> Optimizer:
        self.into.requires_grad_(False)
        return SGD([p for p in self.parameters() if p.requires_grad], lr=1e-3)


class Unused(Base):
    """A layer that no pass comes to."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(DIM, DIM)

    def configure_optimizers(self) -> Optimizer:
        return SGD([p for n, p in self.named_parameters() if "unused" not in n], lr=1e-3)


class OfAdapters(Base):
    def get_lora_param_groups(self) -> Groups:
        return [{"params": [self.out.weight, self.out.bias]}]


class OfItsHead(Base):
    def configure_optimizers(self) -> Optimizer:
        """Trains the last layer only."""
        return SGD(self.out.parameters(), lr=1e-3)


class WithFrozenBackbone(Base):
    def configure_optimizers(self) -> Optimizer:
        return SGD(self.out.parameters(), lr=1e-3)  # the backbone stays as it is


class TwoMethods(Base):
    """Two optimizers of one half each."""

    def make_optimizer_one(self, lr: float) -> Optimizer:
        return SGD(self.into.parameters(), lr=lr)

    def make_optimizer_two(self, lr: float) -> Optimizer:
        return SGD([*self.out.parameters(), *self.norm.parameters(), self.scale], lr=lr)


class ByRates(Base):
    """What its groups leave out is offered beside."""

    def get_1x_lr_params(self) -> Iterator[nn.Parameter]:
        yield from self.into.parameters()

    def get_param_groups(self) -> Groups:
        return [{"params": [*self.out.parameters(), *self.norm.parameters(), self.scale]}]


class PartOfAll(Base):
    """A method that another adds to."""

    def get_optimizer(self, lr: float) -> Optimizer:
        return AdamW([*self.param_groups(), {"params": [self.scale]}], lr=lr)

    def param_groups(self) -> Groups:
        return [{"params": [p for p in self.parameters() if p is not self.scale]}]


class SeveralAtOnce(Base):
    """Lightning's, of two optimizers and their schedules."""

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        one = SGD(self.into.parameters(), lr=1e-3)
        two = AdamW([*self.out.parameters(), *self.norm.parameters(), self.scale], lr=1e-3)
        return [one, two], [torch.optim.lr_scheduler.ConstantLR(one)]


class LayerWise(Base):
    """BEiT's, by the depth of each layer."""

    def param_groups_lrd(self, weight_decay: float = 0.05, no_weight_decay_list: Any = (), layer_decay: float = 0.75):  # type: ignore[no-untyped-def]
        groups: dict[str, dict[str, Any]] = {}
        for name, each in self.named_parameters():
            if not each.requires_grad:
                continue
            decay = 0.0 if each.ndim == 1 or name in no_weight_decay_list else weight_decay
            key = f"{'into' in name}_{decay}"
            groups.setdefault(key, {"lr_scale": layer_decay, "weight_decay": decay, "params": []})
            groups[key]["params"].append(each)
        return list(groups.values())


class Marked(Base):
    """S4's, by marks on parameters."""

    def setup_optimizer(self, lr: float, weight_decay: float, epochs: int) -> tuple[Optimizer, Any]:
        self.scale._optim = {"lr": 1e-4}  # type: ignore[attr-defined]
        every = list(self.parameters())
        optimizer = AdamW([p for p in every if not hasattr(p, "_optim")], lr=lr, weight_decay=weight_decay)
        settings = [dict(each) for each in {frozenset(p._optim.items()) for p in every if hasattr(p, "_optim")}]
        for each in settings:
            optimizer.add_param_group({"params": [p for p in every if getattr(p, "_optim", None) == each], **each})
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)


class NamesOnly(Base):
    """Hugging Face's, of names."""

    def get_decay_parameter_names(self) -> list[str]:
        return [n for n, p in self.named_parameters() if p.ndim > 1]

    def get_optimizer_grouped_parameters(self) -> Groups:
        decay = self.get_decay_parameter_names()
        return [
            {"params": [p for n, p in self.named_parameters() if n in decay], "weight_decay": 0.1},
            {"params": [p for n, p in self.named_parameters() if n not in decay], "weight_decay": 0.0},
        ]


class TiedTwice(Base):
    """A matrix that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.out.weight = self.into.weight

    def param_groups(self) -> Groups:
        return [{"params": [p]} for _, p in self.named_parameters()]


class ListedTied(TiedTwice):
    """Names a shared matrix twice, in one group."""

    def param_groups(self) -> Groups:
        return [{"params": [each for _, each in self.named_parameters(remove_duplicate=False)]}]


class Master(Base):
    """Steps copies in single precision, which are handed back."""

    def make_optimizer(self) -> Optimizer:
        self.master = [p.detach().clone().float().requires_grad_() for p in self.parameters()]
        return AdamW(self.master, lr=1e-3)


class Flat(Base):
    """Steps one vector of all."""

    def make_optimizer(self) -> Optimizer:
        flat = nn.Parameter(torch.cat([p.detach().flatten() for p in self.out.parameters()]))
        return AdamW([flat, *self.into.parameters()], lr=1e-3)


class WithALoss(Base):
    """Has a parameter beside that no module holds."""

    def make_optimizer(self) -> Optimizer:
        return AdamW([*self.parameters(), nn.Parameter(torch.zeros(2))], lr=1e-3)


class AsksForMore(Base):
    def make_optimizer(self, of_what: Any) -> Optimizer:
        return SGD(self.into.parameters(), lr=of_what)


class Raises(Base):
    def configure_optimizers(self) -> Optimizer:
        raise NotImplementedError


class OfAList(Base):
    """Takes parameters, and no model."""

    def get_optimizer(self, params: Any) -> Optimizer:
        return SGD(list(params)[:1], lr=1e-3)


class Holds(Base):
    """Made in the constructor, of everything, and copied with it."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = AdamW(self.parameters(), lr=1e-3)


class HoldsTwo(Base):
    """Two of a half each, one of which is made of what the other leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.opt_a = SGD(self.into.parameters(), lr=1e-3)
        self.opt_b = SGD([p for n, p in self.named_parameters() if not n.startswith("into")], lr=1e-3)


class Grouped(Base):
    """Groups in a mapping, by name."""

    def build_param_groups(self, cfg: Any) -> dict[str, list[nn.Parameter]]:
        found: dict[str, list[nn.Parameter]] = defaultdict(list)
        for each in self.parameters():
            found["decay" if each.ndim > 1 and cfg["weight_decay"] else "rest"].append(each)
        return found


class Named(Base):
    """With names, as torch takes them."""

    def configure_optimizers(self, learning_rate: float) -> Optimizer:
        return AdamW(self.named_parameters(), lr=learning_rate)


class Wrapped(Base):
    """In an object of its own."""

    def get_optimizer(self, lr: float) -> Any:
        class Noam:
            def __init__(self, optimizer: Optimizer) -> None:
                self.optimizer, self.step_number = optimizer, 0

        return Noam(AdamW(self.parameters(), lr=lr))


class Scheduled(Base):
    """With a schedule of its own."""

    def get_optimizer(self, lr: float) -> Any:
        class Warm:
            def __init__(self, opt: Optimizer) -> None:
                self.opt, self.rates = opt, [each["lr"] for each in opt.param_groups]

        optimizer = AdamW(self.parameters(), lr=lr)
        return optimizer, Warm(optimizer)


class Hidden(Base):
    """In an object that does not show what it holds."""

    def get_optimizer(self, lr: float) -> Any:
        class Pair:
            def __init__(self, *held: Any) -> None:
                self.held = held

        return Pair(AdamW(self.out.parameters(), lr=lr), self.into), [self.scale]


def copied() -> nn.Module:
    return copy.deepcopy(Holds())


ASKED: list[Callable[[], nn.Module]] = [
    *(Complete, Frozen, FreezesThen, Unused, OfAdapters, OfItsHead, WithFrozenBackbone, TwoMethods, ByRates, PartOfAll),
    *(SeveralAtOnce, LayerWise, Marked, NamesOnly, TiedTwice, ListedTied, WithALoss, Holds, HoldsTwo, Grouped),
    *(Generated, Named, Wrapped, Scheduled, copied, Flat),
]
NOT_ASKED: list[Callable[[], nn.Module]] = [Base, AsksForMore, Raises, OfAList, Hidden, Master]


def examined(make: Callable[[], nn.Module], *packages: str) -> Result:
    return run_check(registry.load("GRD231"), small_subject(make, width=DIM, packages=packages or ("tests",)))


@pytest.mark.parametrize("make", FAULTY)
def test_parameters_that_no_group_has_are_found(make: type[nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert FAULTY[make] in finding.message
    assert "# HERE" in linecache.getline(finding.where.file, finding.where.line), finding.where


@pytest.mark.parametrize("make", ASKED)
def test_what_is_complete_or_left_out_on_purpose_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.findings == ()
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("make", NOT_ASKED)
def test_what_cannot_be_asked_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.findings == ()
    assert result.verdict is Verdict.SKIP


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.layer(x))

class Other(Model):
    pass
"""
FUNCTIONS = {
    "layer and norm": ("(model, lr):\n    groups = [p for p in model.parameters() if p.ndim > 1]", 3),
    "of a kind": ("(model: Model, lr):\n    groups = [p for p in model.parameters() if p.ndim > 1]", 3),
    "of another kind": ("(model: Other, lr):\n    groups = [p for p in model.parameters() if p.ndim > 1]", 0),
    "of a list": ("(params, lr):\n    groups = list(params)[:1]", 0),
    "of a few": ("(model, lr):\n    groups = [p for n, p in model.named_parameters() if 'norm.b' in n]", 0),
    "that loads": ("(model, lr):\n    torch.load('x')\n    groups = [model.layer.weight]", 0),
    "of all": ("(model, lr):\n    groups = list(model.parameters())", 0),
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        return importlib.import_module(name)

    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_beside_the_module_are_asked(kind: str, written: Callable[[str, str], Any]) -> None:
    source, num_left = FUNCTIONS[kind]
    text = f"{MODEL}\ndef build_optimizer{source}\n    return torch.optim.AdamW(groups, lr=lr)\n"
    module = written("grouped_by_a_function", text)
    result = examined(module.Model, "grouped_by_a_function")
    assert len(result.findings) == (num_left > 0)
    for finding in result.findings:
        assert f"build_optimizer leaves out {num_left} parameters" in finding.message
        assert "if p.ndim > 1" in linecache.getline(finding.where.file, finding.where.line)


def test_a_function_of_a_file_for_heads_is_silent(written: Callable[[str, str], Any]) -> None:
    source = FUNCTIONS["layer and norm"][0]
    written("finetune", f"import torch\n\ndef build_optimizer{source}\n    return torch.optim.AdamW(groups, lr=lr)\n")
    module = written("apart", MODEL)
    assert examined(module.Model, "apart", "finetune").findings == ()


class _Lazy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.late = nn.LazyLinear(DIM)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.late(super().forward(x))
        return output

    def configure_optimizers(self) -> Optimizer:
        return SGD([p for p in self.parameters() if not isinstance(p, nn.UninitializedParameter)], lr=1e-3)


def test_parameters_without_a_shape_are_left_alone() -> None:
    assert examined(_Lazy).findings == ()
