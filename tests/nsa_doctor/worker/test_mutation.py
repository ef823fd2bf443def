"""The child's part of mutation testing: other text for a file, lines that are reached, and what a change does."""

import importlib
import sys
import textwrap
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core.replaced_sources import Replaced, replace_sources
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.mutation import effect_of, reached_by

MIXER = """
    import torch
    from torch import nn

    SCALE = 0.5


    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            if x.shape[1] > 10_000:
                x = x + 1
            return self.linear(x).cumsum(1) * SCALE
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package({"part.py": text})` writes a package of a fresh name and says what it is called."""
    count = iter(range(100))
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    monkeypatch.setattr(Replaced, "texts", {})
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(files, *, is_namespace=False):
        name = f"mutated_{next(count)}"
        made.append(name)
        for file, text in ({} if is_namespace else {"__init__.py": ""} | files).items() or files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return name

    yield write
    for module in [module for module in sys.modules if module.partition(".")[0] in made]:
        del sys.modules[module]


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    replace_sources({str(path): text.replace(old, new)})


@pytest.mark.parametrize("is_namespace", [False, True], ids=["package", "namespace"])
def test_a_module_is_imported_from_other_text_and_its_file_stays(package, tmp_path, is_namespace):
    name = package({"one.py": "ONE = 1\n", "inner/two.py": "from ..one import ONE\n"}, is_namespace=is_namespace)
    path = tmp_path / name / "one.py"
    replaced(path, "ONE = 1", "ONE = 7")
    module = importlib.import_module(f"{name}.inner.two")
    assert module.ONE == 7
    assert path.read_text() == "ONE = 1\n"
    assert importlib.import_module(f"{name}.one").__file__ == str(path)


def test_a_module_that_is_loaded_by_its_path_is_replaced_too(package, tmp_path):
    name = package({"one.py": "ONE = 1\n"})
    path = tmp_path / name / "one.py"
    replaced(path, "ONE = 1", "ONE = 7")
    spec = importlib.util.spec_from_file_location("by_path", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.ONE == 7


def subject_of(name, change=None):
    return load_subject(SubjectRequest(spec=f"{name}.mixer:Mixer", lengths=(16,)))


def test_lines_are_reached_by_building_and_passes_in_the_subjects_own_files_alone(package, tmp_path):
    name = package({"mixer.py": MIXER})
    before = frozenset(sys.modules)
    heard = []
    reached = reached_by(subject_of(name), (2, 3), (name,), before, heard.append)
    lines = (tmp_path / name / "mixer.py").read_text().splitlines()
    (file,) = reached["lines"]
    assert file == str(tmp_path / name / "mixer.py")
    lines_reached = [lines[number - 1].strip() for number in reached["lines"][file]]
    assert lines_reached == [
        "super().__init__()",
        "self.linear = nn.Linear(8, 8)",
        "if x.shape[1] > 10_000:",
        "return self.linear(x).cumsum(1) * SCALE",
    ]
    assert set(heard) == {2, 3}


def test_a_file_that_was_there_before_the_subject_is_left_out(package, tmp_path):
    name = package({"mixer.py": MIXER})
    subject = subject_of(name)
    reached = reached_by(subject, (2,), (name,), frozenset(sys.modules), lambda length: None)
    assert reached == {"lines": {}, "left_out": [str(tmp_path / name / "mixer.py")]}


@pytest.mark.parametrize(
    ("old", "new", "kind", "says"),
    [
        ("SCALE = 0.5", "SCALE = 1.0", "changed", "output at S=1 (train): by up to"),
        ("cumsum(1)", "flip(1).cumsum(1)", "changed", "output at S=2 (train)"),
        ("cumsum(1)", "detach().cumsum(1)", "changed", "gradient of"),
        ("x = x + 1", "x = x - 1", "same", ""),
        ("SCALE = 0.5", "SCALE = 0.5 + 1e-12", "same", ""),
        ("SCALE = 0.5", "SCALE = float('nan')", "changed", "not finite"),
        ("nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)", "other parameters", ""),
        ("cumsum(1)", "cumsum(7)", "raises", "IndexError"),
        ("10_000", "1", "changed", "output at S=2 (train): by up to"),
    ],
)
def test_what_a_change_does(package, tmp_path, old, new, kind, says):
    file = str(tmp_path / "as-it-is.pt")
    assert effect_of(subject_of(package({"mixer.py": MIXER})), file, (1, 2, 5), lambda length: None) == {
        "kind": "recorded",
        "said": "",
    }
    changed = subject_of(package({"mixer.py": MIXER.replace(old, new)}))
    effect = effect_of(changed, file, None, lambda length: None)
    assert effect["kind"] == kind
    assert says in effect["said"]


def test_a_gradient_that_cancels_to_nothing_is_not_changed_by_rounding(package, tmp_path):
    file = str(tmp_path / "as-it-is.pt")
    score = "(z := self.linear(x) @ x.mT)"
    attention = MIXER.replace("self.linear(x).cumsum(1) * SCALE", f"{score}.softmax(-1) @ x + self.linear(x)")
    other = attention.replace(".softmax(-1)", ".exp() * (1 / z.exp().sum(-1, keepdim=True))")
    effect_of(subject_of(package({"mixer.py": attention})), file, (1,), lambda length: None)
    assert effect_of(subject_of(package({"mixer.py": other})), file, None, lambda length: None)["kind"] == "same"


def test_other_initial_values_of_the_same_parameters_are_no_change(package, tmp_path):
    file = str(tmp_path / "as-it-is.pt")
    effect_of(subject_of(package({"mixer.py": MIXER})), file, (2,), lambda length: None)
    other = MIXER.replace("self.linear = ", "torch.randn(3); self.linear = ")
    assert effect_of(subject_of(package({"mixer.py": other})), file, None, lambda length: None)["kind"] == "same"


ATTENTION = """
    import torch
    from torch import nn


    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x


    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)
            self.q_norm, self.k_norm = nn.LayerNorm(8), nn.LayerNorm(8)
            self.to_gate, self.to_value = nn.Linear(8, 8), nn.Linear(8, 8)
            self.scale = nn.Parameter(torch.full((8,), 0.5))

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q, k = self.q_norm(q), self.k_norm(k)
            y = (q @ k.mT / 8**0.5).softmax(-1) @ v
            return self.out(y * self.scale + self.to_gate(x).sigmoid() * self.to_value(x))
"""


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("q, k, v = self.qkv", "v, q, k = self.qkv", "other order"),
        ("q, k, v = self.qkv", "k, q, v = self.qkv", "other order"),
        ("q, k = self.q_norm", "k, q = self.q_norm", "other order"),
        ("q @ k.mT", "k @ q.mT", "other order"),
        ("x = x + layer(x)", "x = x - layer(x)", "other order"),
        ("self.to_gate(x).sigmoid() * self.to_value(x)", "self.to_value(x).sigmoid() * self.to_gate(x)", "other order"),
        ("/ 8**0.5", "* 8**0.5", "changed"),
        ("y * self.scale", "y / self.scale", "changed"),
        ("y * self.scale +", "y * self.scale -", "other order"),  # values of another sign
        (".sigmoid()", ".tanh()", "changed"),
        ("@ k.mT", "@ k.detach().mT", "changed"),
        (".softmax(-1)", ".softmax(-1).detach()", "changed"),
        ("@ v", "@ k", "changed"),
        ("softmax(-1)", "softmax(-2)", "changed"),
        ("x + layer(x)", "layer(x)", "changed"),
    ],
)
def test_parameters_in_another_order_are_another_start_and_no_other_model(package, tmp_path, old, new, kind):
    file = str(tmp_path / "as-it-is.pt")
    effect_of(subject_of(package({"mixer.py": ATTENTION})), file, (1, 2, 5), lambda length: None)
    changed = subject_of(package({"mixer.py": ATTENTION.replace(old, new)}))
    assert effect_of(changed, file, None, lambda length: None)["kind"] == kind
