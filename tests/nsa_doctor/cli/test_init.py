"""`nsa-doctor init` reads the source of a folder, runs none of it, and writes a file that `run` takes."""

import os
from pathlib import Path

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.cli.project_file import FILE, find_project_file
from nsa_doctor.cli.proposals import proposals

BARE = "import nowhere\nraise SystemExit('run')\nclass Attention(nn.Module):\n    def forward(self, x): return x\n"
NEEDY = """
class Norm(nn.Module):
    def forward(self, x): return x
class Attention(nn.Module):
    def __init__(self, dim, *, heads): ...
    def forward(self, x): return x
"""
HOLDER = """
class Quill(nn.Module):
    def __init__(self): self.a = [Attention(8, heads=2)]
    def forward(self, x): return x
"""
FACTORY = "\ndef build():\n    return Attention(64, heads=4)\n"
DERIVED = "class Mine(Base):\n    def forward(self, x): return x.softmax(-1)\nclass Base(torch.nn.Module):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


SUBJECTS = {
    "class": ({"attn.py": BARE}, "attn:Attention", "foreign"),
    "package": ({"my_pkg/attn.py": BARE, "my_pkg/__init__.py": ""}, "my_pkg.attn:Attention", "foreign"),
    "factory": ({"attn.py": NEEDY + FACTORY}, "attn:build", "foreign"),
    "derived": (
        {"a.py": DERIVED, "b.py": "class Norm(Base):\n    def forward(self, x): return x\n"},
        "a:Mine",
        "foreign",
    ),
    "in a package's own file": ({"my_pkg/__init__.py": BARE}, "my_pkg:Attention", "foreign"),
    "adapter": (
        {"a.py": BARE, "doctor.py": "def make() -> Adapter:\n    return Adapter()\n"},
        "doctor:make",
        "foreign",
    ),
    "what holds the attention": ({"quill.py": NEEDY + HOLDER}, "quill:Quill", "foreign"),
    "function": ({"kernels.py": "def attend(q, k, v, scale=1.0): ...\n"}, "fn:kernels:attend", "function"),
    "a module before a function that may be its part": (
        {
            "a.py": "def attend(q, k, v): return (q @ k.mT).softmax(-1) @ v\n",
            "b.py": BARE.replace("Attention", "Model"),
        },
        "b:Model",
        "foreign",
    ),
    "a function before any module": (
        {"b.py": "def attention(q, k, v): ...\n", "a.py": BARE.replace("Attention", "Norm")},
        "fn:b:attention",
        "function",
    ),
    "what is called with one tensor": (
        {"a.py": BARE.replace("(self, x)", "(self, x, table)"), "b.py": BARE.replace("Attention", "Layer")},
        "b:Layer",
        "foreign",
    ),
    "a configuration of transformers": ({"config.json": '{"model_type": "llama"}'}, "hf:config.json", "foreign"),
    "a configuration of something else": ({"config.json": "[]", "a.py": BARE}, "a:Attention", "foreign"),
    "a module beside a configuration": (
        {"config.json": '{"model_type": "llama"}', "a.py": BARE.replace("Attention", "Model")},
        "a:Model",
        "foreign",
    ),
    "not tests": ({"tests/attn.py": BARE, "test_a.py": BARE, "mixer.py": BARE}, "mixer:Attention", "foreign"),
}


@pytest.mark.parametrize(("files", "subject", "policy"), SUBJECTS.values(), ids=SUBJECTS.keys())
def test_the_likeliest_subject_is_proposed(
    folder: Path, files: dict[str, str], subject: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        write(folder, name, text)
    assert serve(["init"]) == 0, capsys.readouterr().err
    found = find_project_file(folder)
    assert found is not None
    assert (found.options["subject"], found.options["policy"]) == (subject, policy)
    assert "next: nsa-doctor run (a minute)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "like"),
    [
        ("q, k, v", "sdpa"),
        ("query, key, value, attn_mask=None", "sdpa"),
        ("q, k, v, softmax_scale=None, causal=False", "flash"),
        ("query, key, value, score_mod=None", "flex"),
        ("module, query, key, value, attention_mask", "hf"),
    ],
)
def test_a_function_is_called_as_its_parameters_are_named(folder: Path, arguments: str, like: str) -> None:
    write(folder, "kernels.py", f"def attend({arguments}): ...\n")
    (found,) = proposals(folder)
    assert found.like == like


@pytest.mark.parametrize(
    ("body", "like"),
    [
        ("s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5; return s.softmax(-1) @ v", "sdpa"),
        ("s = torch.matmul(q.float() * 0.1, k.mT); return s.softmax(-1) @ v", "sdpa"),
        ("scale = 0.1; return (scale * q @ k.mT).softmax(-1) @ v", "sdpa"),
        ("return q.matmul(k.mT).softmax(-1) @ v", "sdpa"),
        ("(q := q.transpose(1, 2)); s = q @ k.mT; return s", "flash"),
        ("q, k, v = (x.transpose(1, 2) for x in (q, k, v)); return (q @ k.mT).softmax(-1) @ v", "flash"),
        ("s = torch.einsum('bqhd,bkhd->bhqk', q, k); return s", "flash"),
        ("return _Kernel.apply(q, k, v, causal)", "flash"),
    ],
)
def test_heads_stand_before_tokens_where_queries_are_multiplied_by_keys_as_they_come(
    folder: Path, body: str, like: str
) -> None:
    write(folder, "kernels.py", f"def attend(q, k, v, causal=True):\n    {body}\n")
    (found,) = proposals(folder)
    assert found.like == like


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("q, k, v, causal=True, scale=None", 'spec = "causal,square"  # a guess'),
        ("q, k, v, *, is_causal=True", 'spec = "causal,square"  # a guess'),
        ("q, k, v, causal=False", '# spec = "causal"  # or full'),
        ("q, k, v", '# spec = "causal"  # or full'),
    ],
)
def test_what_a_function_computes_is_guessed_by_a_default_or_asked_for(
    folder: Path, arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "kernels.py", f"def attend({arguments}): ...\n")
    assert serve(["init"]) == 0
    assert ("left to you: spec in nsa-doctor.toml" in capsys.readouterr().out) is line.startswith("#")
    assert f"\n{line}" in (folder / FILE).read_text()
    found = find_project_file(folder)
    assert found is not None
    assert found.options.get("spec") == ("causal,square" if line.startswith("spec") else None)


def test_a_package_in_src_is_found_there(folder: Path) -> None:
    write(folder, "src/my_pkg/attn.py", BARE)
    assert serve(["init"]) == 0
    found = find_project_file(folder)
    assert found is not None
    assert (found.options["subject"], found.folders) == ("my_pkg.attn:Attention", (str(folder / "src"),))


CONFIGURED = """
from dataclasses import dataclass, field
@dataclass
class Config:
    dim: int = 64
    heads: tuple = field(default_factory=lambda: (1, 2))
class Attention(nn.Module):
    def __init__(self, config: Config, *, gate: Gate): ...
    def forward(self, x): return x
class Gate:
    def __init__(self, width=3): ...
"""


@pytest.mark.parametrize("base", ["", "src/"])
def test_what_is_made_of_configurations_with_defaults_gets_a_factory(
    folder: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, f"{base}my_pkg/attn.py", CONFIGURED)
    assert serve(["init"]) == 0, capsys.readouterr().err
    found = find_project_file(folder)
    assert found is not None
    assert found.options["subject"] == "doctor_subject:make"
    assert found.folders == tuple(str(folder / name) for name in (["src", "."] if base else ["."]))
    text = (folder / "doctor_subject.py").read_text()
    assert "from my_pkg.attn import Attention, Config, Gate\n" in text
    assert "return Attention(config=Config(), gate=Gate())" in text
    assert "makes Attention(config=Config(), gate=Gate())" in capsys.readouterr().out
    assert serve(["init", "--overwrite"]) == 0


BY_NAME = """
from dataclasses import dataclass
@dataclass
class {first}:
    dim: int = 64
@dataclass
class {second}:
    dim: int = 64
class GPT(nn.Module):
    def __init__(self, {parameter}): ...
    def forward(self, ids): return ids
"""


@pytest.mark.parametrize(
    ("first", "second", "parameter", "kind"),
    [
        ("TrainConfig", "GPTConfig", "config", "GPTConfig"),
        ("ModelArgs", "Batch", "args", "ModelArgs"),
        ("TrainConfig", "DataConfig", "config", None),
        ("GPTConfig", "Batch", "dim", None),
        ("GPT2Config", "GPTConfig", "model_cfg", "GPTConfig"),
    ],
)
def test_a_configuration_is_found_by_its_name_where_no_annotation_says_it(
    folder: Path, first: str, second: str, parameter: str, kind: str | None
) -> None:
    write(folder, "model.py", BY_NAME.format(first=first, second=second, parameter=parameter))
    (found,) = proposals(folder)
    assert found.made_with == (() if kind is None else ((parameter, kind),))
    assert found.missing == (() if kind is not None else (parameter,))


def test_a_module_that_was_found_is_made_when_it_is_named(folder: Path) -> None:
    write(folder, "model.py", BARE + BY_NAME.format(first="GPTConfig", second="Batch", parameter="config"))
    assert serve(["init"]) == 0
    assert "`nsa-doctor init --overwrite --subject model:GPT` makes it" in (folder / FILE).read_text()
    assert serve(["init", "--overwrite", "--subject", "model:GPT"]) == 0
    assert "doctor_subject:make" not in (folder / FILE).read_text().partition("Found here too")[2]
    assert "return GPT(config=GPTConfig())" in (folder / "doctor_subject.py").read_text()


@pytest.mark.parametrize(
    ("constructor", "made"),
    [("", "Attention"), ("    def __init__(self, config): ...\n", "lambda: Attention(config=Config())")],
)
def test_a_module_of_queries_keys_and_values_gets_an_adapter(folder: Path, constructor: str, made: str) -> None:
    text = f"class Attention(torch.nn.Module):\n{constructor}    def forward(self, query, key, value, mask=None): ...\n"
    write(folder, "attn.py", f"import torch\n@dataclass\nclass Config:\n    dim: int = 8\n{text}")
    assert serve(["init"]) == 0
    factory = (folder / "doctor_subject.py").read_text()
    assert "\nfrom nsa_doctor import Adapter\n" in factory
    assert f"return Adapter(make={made}, call=lambda module, x: module(x, x, x))" in factory


@pytest.mark.parametrize("line", ["    dim: int", "    other: str"])
def test_a_configuration_that_needs_arguments_is_not_made(folder: Path, line: str) -> None:
    write(folder, "attn.py", CONFIGURED.replace("    dim: int = 64", line))
    (found,) = [each for each in proposals(folder) if each.name == "Attention"]
    assert (found.made_with, found.missing) == ((), ("config", "gate"))


@pytest.mark.parametrize("words", [["run"], ["go-no-go"]])
def test_without_a_subject_no_example_is_examined_where_that_is_asked_for(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve([*words, "--no-example"]) == 2
    assert "no subject is named: say --subject" in capsys.readouterr().err
    write(folder, FILE, 'subject = "nowhere:make"\n')
    assert serve([*words, "--no-example"]) == 2
    assert "subject nowhere:make cannot be imported" in capsys.readouterr().err


REFUSED = {
    "nothing": ({}, [], "no Python file here defines an nn.Module"),
    "needs arguments": (
        {"a.py": NEEDY},
        [],
        "a.py:4 Attention needs dim and heads: write doctor_subject.py here with from a",
    ),
    "needs arguments, named": ({"a.py": NEEDY}, ["--subject", "a:Attention"], "Attention needs dim and heads"),
    "there": ({FILE: "x"}, [], "is there already; add --overwrite"),
    "a factory is there": ({"a.py": CONFIGURED, "doctor_subject.py": "x"}, [], "doctor_subject.py: is there already"),
    "a table is there": ({"pyproject.toml": "[tool.nsa-doctor]\nseed = 1\n"}, [], "[tool.nsa-doctor] already"),
    "no subject": ({"a.py": BARE}, ["--subject", "mine"], "--subject must be package.module:factory"),
    "a function": ({"a.py": BARE}, ["--subject", "fn:a:f"], "say how it is called with --like"),
    "like": ({"a.py": BARE}, ["--like", "sdpa"], "--like is for a --subject fn:"),
    "policy": ({"a.py": BARE}, ["--policy", "nowhere"], "--policy 'nowhere': cannot be read"),
}


@pytest.mark.parametrize(("files", "words", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_proposed_is_one_sentence_and_writes_nothing(
    folder: Path, files: dict[str, str], words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        write(folder, name, text)
    before = sorted(folder.iterdir())
    assert serve(["init", *words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_files_that_are_no_python_of_ours_are_passed_over(folder: Path) -> None:
    write(folder, "good.py", BARE)
    write(folder, "broken.py", "class (")
    write(folder, "no identifier.py", BARE)
    write(folder, "env/pyvenv.cfg", "")
    write(folder, "env/other.py", BARE)
    write(folder, "other/pyvenv.cfg", "")
    write(folder, "other/attn.py", BARE)
    (folder / "zeros.py").write_bytes(b"\0" * 100)
    (folder / "large.py").write_text("#" * (1 << 20) + "\n" + BARE)
    (folder / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.py")
    assert [each.subject for each in proposals(folder)] == ["good:Attention"]


def test_names_of_files_that_a_terminal_would_obey_are_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "\x1b[31m/attn.py", BARE)  # no identifier: not proposed
    write(folder, "attn.py", BARE)
    assert serve(["init"]) == 0
    assert "\x1b" not in (folder / FILE).read_text() + capsys.readouterr().out
