"""An initialiser that nothing calls is found where it would make a difference; those that anything may call are not."""

import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent, indent

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 32
Examine = Callable[..., Result]
HEAD = "import torch\nfrom torch import nn\n"
LAYER = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(32, 64), nn.Linear(64, 32)
        {called}
    def forward(self, x):
        return self.two(self.one(x).relu())
"""
WIDE = """
def init_weights(self):
    nn.init.normal_(self.one.weight, std=0.5)
    nn.init.zeros_(self.one.bias)
"""
OF_A_MODULE = """
def _init_weights(self, module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight, gain=4)
"""
AS_TORCH = """
def reset_parameters(self):
    self.one.reset_parameters()
    self.two.reset_parameters()
"""


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Examine]:
    """Write a package of these files, and examine what `make` of its `model.py` makes."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def run(model: str, **others: str) -> Result:
        for name, text in {"packaged/__init__": "", "packaged/model": model, **others}.items():
            path = tmp_path / (name if "." in name else f"{name}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        make = importlib.import_module("packaged.model").make
        return run_check(registry.load("GRD226"), small_subject(make, width=DIM, packages=("packaged",)))

    yield run
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("packaged", "library"):
            del sys.modules[name]


def layer(*methods: str, called: str = "", more: str = "", make: str = "make = Layer") -> str:
    """The source of a module whose layer has these methods."""
    bodies = "".join(indent(dedent(each), "    ") for each in methods)
    return f"{HEAD}{more}\n{LAYER.format(called=called)}{bodies}\n{make}\n"


def found(result: Result) -> Finding:
    (finding,) = result.findings
    return finding


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (WIDE, "init_weights"),
        (WIDE.replace("init_weights", "reset_parameters"), "reset_parameters"),
        (WIDE.replace("init_weights", "_init_layers"), "_init_layers"),
        (WIDE.replace("init_weights", "initialize"), "initialize"),
        (OF_A_MODULE, "_init_weights"),
        ("@torch.no_grad()\ndef weight_init(self):\n    self.one.weight.uniform_(-1, 1)\n", "weight_init"),
        ("@staticmethod\ndef init_weights(m):\n    if hasattr(m, 'weight'): m.weight.data.normal_()\n", "init_weights"),
    ],
)
def test_an_initialiser_that_nothing_calls_is_found_at_its_definition(examine: Examine, method: str, name: str) -> None:
    finding = found(examine(layer(method)))
    assert finding.message.startswith(f"Layer.{name} initialises parameters, and nothing calls it: ")
    assert f"def {name}(" in linecache.getline(finding.where.file, finding.where.line)
    assert (finding.where.module_class, finding.where.function) == ("Layer", name)


def test_what_a_parameter_has_and_would_have_is_said(examine: Examine) -> None:
    message = found(examine(layer(WIDE))).message
    assert "one.weight has a standard deviation of 0.10" in message
    assert "and by it would have a standard deviation of 0.5" in message or "deviation of 0.4" in message
    assert message.endswith("(1 more differs too)")


def test_of_memory_that_nothing_writes_it_is_said(examine: Examine) -> None:
    made = "self.gain = nn.Parameter(torch.empty(64, 1))"
    method = "def reset_parameters(self):\n    nn.init.normal_(self.gain, std=0.02)\n"
    assert "gain has memory that nothing has written" in found(examine(layer(method, called=made))).message


def test_latents_that_stay_zeros_are_found(examine: Examine) -> None:
    made = "self.latents = nn.Parameter(torch.zeros(4, 32))"
    method = "def init_weights(self):\n    nn.init.normal_(self.latents, std=0.02)\n"
    message = found(examine(layer(method, called=made))).message
    assert "latents has 0 throughout, and by it would have a standard deviation of 0.0" in message


def test_what_another_class_asks_of_itself_is_not_a_call_of_it(examine: Examine) -> None:
    other = (
        "\nclass Other(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.init_weights()\n"
    )
    other += "    def init_weights(self):\n        pass\n"
    assert found(examine(layer(WIDE, more=other))).evidence["method"] == "init_weights"


def test_a_chain_of_definitions_that_nothing_begins_is_found(examine: Examine) -> None:
    outer = """
    class Outer(Layer):
        def init_weights(self):
            super().init_weights()
    make = Outer
    """
    assert found(examine(layer(WIDE, make=dedent(outer)))).where.module_class == "Outer"


def test_an_initialiser_that_nothing_but_another_idle_one_uses_is_found_once(examine: Examine) -> None:
    method = "def init_weights(self):\n    self.apply(self._init_weights)\n"
    assert found(examine(layer(method, OF_A_MODULE))).evidence["method"] == "init_weights"


LIBRARY = "from torch import nn\nclass Base(nn.Module):\n    def start(self):\n        self.init_weights()\n"
DERIVED = (
    HEAD + "from library import Base\n" + LAYER.format(called="").replace("nn.Module", "Base") + indent(WIDE, "    ")
)
HEALTHY: dict[str, tuple[str, dict[str, str]]] = {
    "called": (layer(WIDE, called="self.init_weights()"), {}),
    "applied": (layer(OF_A_MODULE, called="self.apply(self._init_weights)"), {}),
    "by-a-factory": (layer(WIDE, make="def make():\n    made = Layer()\n    made.init_weights()\n    return made"), {}),
    "by-a-base": (
        layer(
            more="class Base(nn.Module):\n    def finish(self):\n        self.init_weights()\n",
            make=f"class Sub(Base, Layer):\n{indent(WIDE, '    ')}\nmake = Sub",
        ),
        {},
    ),
    "by-a-sibling": (
        layer(
            WIDE,
            make="class Sub(Layer):\n    def begin(self):\n        self.init_weights()\nmake = Layer",
        ),
        {},
    ),
    "lazily": (layer(WIDE, "def begin(self):\n    self.init_weights()\n"), {}),
    "by-a-trainer": (layer(WIDE), {"packaged/trainer": "def train(model):\n    model.init_weights()\n"}),
    "by-a-script": (layer(WIDE), {"train": "def train(model):\n    model.init_weights()\n"}),
    "by-a-notebook": (layer(WIDE), {"run.ipynb": '{"source": ["model.init_weights()"]}'}),
    "in-its-docstring": (layer(WIDE, more='"""Call `model.init_weights()` before training."""\n'), {}),
    "by-name": (layer(WIDE), {"packaged/run": "def run(model):\n    getattr(model, 'init_weights')()\n"}),
    "by-parts": (layer(WIDE, "def begin(self, what):\n    getattr(self, f'init_{what}')()\n"), {}),
    "hooked": (layer(WIDE, "start = init_weights\n"), {}),
    "by-a-library": (f"{DERIVED}\nmake = Layer\n", {"library/__init__": LIBRARY}),
    "over-a-method-of-torch": (
        f"{HEAD}class Own(nn.Linear):\n    def _reset(self): ...\n    def reset_parameters(self):\n"
        "        nn.init.zeros_(self.weight)\nmake = lambda: Own(32, 32)\n",
        {},
    ),
    "same-distribution": (layer(AS_TORCH), {}),
    "given-on-purpose": (layer(WIDE, called="nn.init.ones_(self.one.weight); nn.init.ones_(self.one.bias)"), {}),
    "given-by-its-holder": (
        layer(
            WIDE,
            make="def make():\n    made = Layer()\n    list(map(nn.init.normal_, made.parameters()))\n    return made",
        ),
        {},
    ),
    "drawn-where-made": (
        layer(
            "def reset_parameters(self):\n    nn.init.normal_(self.latents, std=0.5)\n",
            called="self.latents = nn.Parameter(0.02 * torch.randn(8, 32))",
        ),
        {},
    ),
    "one-number": (
        layer(
            "def reset_parameters(self):\n    self.three.reset_parameters()\n", called="self.three = nn.Linear(32, 1)"
        ),
        {},
    ),
    "needs-more": (layer(WIDE.replace("(self)", "(self, std)")), {}),
    "writes-no-parameter": (layer("def init_weights(self):\n    return 1\n"), {}),
    "writes-a-state": (
        layer(
            "def reset_parameters(self):\n    self.seen.zero_()\n", called="self.register_buffer('seen', torch.ones(3))"
        ),
        {},
    ),
    "abstract": (
        layer("@__import__('abc').abstractmethod\ndef init_weights(self):\n    nn.init.ones_(self.one.weight)\n"),
        {},
    ),
    "reset-is-for-later": (layer(WIDE.replace("init_weights", "reset_memory")), {}),
    "loaded": (
        layer(
            WIDE,
            make="def make():\n    made = Layer()\n    made.load_state_dict(Layer().state_dict())\n    return made",
        ),
        {},
    ),
    "built-before": (layer(WIDE, make="made = Layer()\nmake = lambda: made"), {}),
    "raises": (layer("def init_weights(self):\n    nn.init.ones_(self.nowhere)\n"), {}),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_initialisers_that_are_called_or_change_nothing_are_silent(examine: Examine, case: str) -> None:
    model, others = HEALTHY[case]
    result = examine(model, **others)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


def test_other_definitions_of_that_name_are_no_calls(examine: Examine) -> None:
    others = {"packaged/functions": "def init_weights(model):\n    pass\n__all__ = ['init_weights']\n"}
    assert found(examine(layer(WIDE), **others)).evidence["method"] == "init_weights"


@pytest.mark.parametrize("has_project", [True, False])
def test_a_script_beside_the_folder_of_sources_is_read_where_a_project_holds_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_project: bool
) -> None:
    package = tmp_path / "project" / "src" / "beside"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.py").write_text(layer(WIDE), encoding="utf-8")
    (tmp_path / "project" / "train.py").write_text("from beside.model import make\nmake().init_weights()\n")
    if has_project:
        (tmp_path / "project" / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(package.parent)
    make = importlib.import_module("beside.model").make
    result = run_check(registry.load("GRD226"), small_subject(make, width=DIM, packages=("beside",)))
    for name in ("beside", "beside.model"):
        del sys.modules[name]
    assert len(result.findings) == (not has_project)
