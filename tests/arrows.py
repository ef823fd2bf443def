"""The arrows between our modules, as CONTRIBUTING draws them, and the imports that break them."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.syntax_trees import children, walk

PACKAGES = {  # package: our packages it may import
    "nsa": {"nsa"},
    "nsa_doctor": {"nsa", "nsa_doctor"},
    "regressions": {"nsa", "nsa_doctor", "regressions"},
}
IMPLEMENTATIONS = {"reference", "vectorized", "triton", "flash", "fused"}  # of a branch
LEAVES = ("nsa.types", "nsa.autocast", "nsa.ops.geometry")
TILING = (
    *("nsa.ops.tiles", "nsa.ops.kernel_tiles", "nsa.ops.kernel_launch", "nsa.ops.band_kernels"),
    *("nsa.ops.banded", "nsa.ops.reads", "nsa.ops.hopper*", "nsa.ops.flash_layout"),
)
MODEL = (
    "nsa.nn",
    "nsa.nn.*",
    "nsa.ops.api",
    "nsa.ops.arguments",
    "nsa.ops.reads",
    "nsa.ops.decode.*",
    "nsa.config",
    "nsa.backends",
    *LEAVES,
)
# Module of nsa: the modules of nsa it may import. The first pattern that fits counts.
LAYERS: dict[str, tuple[str, ...]] = {
    "nsa": ("nsa.*",),
    "nsa.types": (),
    "nsa.autocast": (),
    "nsa.plain_yaml": (),
    "nsa.strict": (),
    "nsa.config": ("nsa.plain_yaml", "nsa.strict", *LEAVES),
    "nsa.backends": ("nsa.config", *LEAVES),
    "nsa.ops": (),
    "nsa.ops.geometry": ("nsa.types",),
    "nsa.ops.flash_layout": (),
    "nsa.ops.reads": LEAVES,
    "nsa.ops.tiles": LEAVES,
    "nsa.ops.kernel_tiles": ("nsa.ops.tiles", *LEAVES),
    "nsa.ops.kernel_launch": LEAVES,
    "nsa.ops.band_kernels": ("nsa.ops.kernel_tiles", "nsa.ops.hopper*", *LEAVES),
    "nsa.ops.hopper.*": ("nsa.ops.hopper.*", "nsa.ops.kernel_tiles", "nsa.ops.tiles", *LEAVES),
    "nsa.ops.banded": ("nsa.ops.tiles", "nsa.ops.reads", *LEAVES),
    "nsa.ops.arguments": LEAVES,
    "nsa.ops.choice": ("nsa.ops.score*", "nsa.ops.select*", *LEAVES),
    "nsa.ops.traced": ("nsa.ops.*", *LEAVES),
    "nsa.ops.serving": ("nsa.ops.*", "nsa.backends", *LEAVES),
    "nsa.ops.api": ("nsa.ops.*", "nsa.backends", "nsa.config", *LEAVES),
    "nsa.ops.*.reference": LEAVES,
    "nsa.ops.*.*": (*TILING, *LEAVES),  # and its own folder's modules that are no implementation
    "nsa.ops.*": (),
    "nsa.nn": MODEL,
    "nsa.nn.*": MODEL,
    "nsa.data": ("nsa.data.*", "nsa.config", "nsa.strict", "nsa.types"),
    "nsa.data.*": ("nsa.data.*", "nsa.config", "nsa.strict", "nsa.types"),
    "nsa.train.loss_kernels": ("nsa.ops.kernel_tiles", "nsa.ops.tiles", *LEAVES),
    "nsa.hf": ("nsa.hf.*",),
    "nsa.hf.*": ("nsa.hf.*", "nsa.train.checkpoint", "nsa.train.weights", "nsa.strict", *MODEL),
    "nsa.train": ("nsa.train.*", "nsa.data", "nsa.data.*", "nsa", *MODEL),
    "nsa.train.*": ("nsa.train.*", "nsa.data", "nsa.data.*", "nsa", *MODEL),
}
# Room of the doctor: the rooms it may import, at once or late. There is no circle, as TopologicalSorter would say.
PROBES = ("probes.internal", "probes.tensors", "probes.hooks", "probes.model", "probes.numerics")
ARTIFACTS = ("artifacts", "artifacts.checkpoint", "artifacts.data", "artifacts.training_run")
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "subject": ("core",),
    "isolation": ("core",),
    "render": ("core",),
    "engine": ("core", "isolation"),
    "probes": (),
    "probes.internal": ("core",),
    "probes.tensors": ("core", "subject", *PROBES[:1]),
    "probes.hooks": ("core", "isolation", "subject", *PROBES[:2]),
    "probes.model": ("core", "subject", *PROBES[:3]),
    "probes.numerics": ("core", "subject", *PROBES[:4]),
    "probes.attention": ("core", "subject", *PROBES),
    "probes.functions": ("core", "subject", "probes.internal", "probes.tensors"),
    "probes.gradients": ("core", "subject", *PROBES),
    "probes.behaviour": ("core", "subject", *PROBES, "probes.attention", "probes.gradients"),
    "probes.language": ("core", "subject", *PROBES),
    "probes.cost": ("core", "subject", *PROBES),
    "adapters": ("core", "subject", "adapters.hugging_face", "probes.tensors", "probes.model", "probes.attention"),
    "adapters.functions": ("core", "subject", "adapters", "probes.functions"),
    "adapters.hugging_face": ("core", "subject", "probes.internal", "probes.model"),
    "artifacts": ("core",),
    "artifacts.checkpoint": ("core", "isolation", "artifacts"),
    "artifacts.data": ("core", "isolation", "subject", "artifacts", "probes.model"),
    "artifacts.training_run": ("core", "isolation", "artifacts"),
    "testing": ("core", "isolation", "subject", "adapters", "worker", *ARTIFACTS),
    "fuzz": ("core", "isolation", "subject", "engine", "adapters", *PROBES),
    "checks": (*("core", "subject", "engine", "fuzz", "testing", *ARTIFACTS), "probes.*"),
    "worker": (*("core", "isolation", "subject", "adapters", "adapters.*", "fuzz", *ARTIFACTS), "probes.*"),
    "policy": ("core", "isolation", "engine", *ARTIFACTS),
    "policy.proving": ("core", "isolation", "engine", "policy", "probes.model"),
    "cases": ("core", "isolation", "render", "adapters", "probes.model", "worker"),
    "cli": ("core", "isolation", "engine", "policy", "policy.proving", "render", "fuzz", "cases", *ARTIFACTS),
    "pytest": ("core", "isolation", "subject", "engine", "adapters", "worker", "cli", "probes.*"),
    "": ("core", "cli", "adapters", "subject", "testing"),  # the entry point, and the public names
}
TORCH_IN_THE_DOCTOR = (
    *("nsa_doctor", "nsa_doctor.adapters*", "nsa_doctor.subject*", "nsa_doctor.probes*", "nsa_doctor.checks*"),
    *(
        "nsa_doctor.testing*",
        "nsa_doctor.fuzz.properties*",
        "nsa_doctor.worker.handlers",
        "nsa_doctor.worker.run_check",
        "nsa_doctor.worker.function_main",
        "nsa_doctor.cases.case",
    ),
    "nsa_doctor.artifacts.training_run.replay_*",
)
PLUGIN_OF_PYTEST = (
    "nsa_doctor.pytest.*",
    "regressions.test_cases",
)  # loaded by pytest alone
# Distribution: the name it is imported by, where the two differ.
IMPORT_NAMES = {"pyyaml": "yaml"}
KERNELS = (
    *("nsa.ops.kernel_tiles", "nsa.ops.kernel_launch", "nsa.ops.band_kernels"),
    *(
        "nsa.ops.*.triton",
        "nsa.ops.hopper.*",
        "nsa.ops.decode.choice",
        "nsa.ops.decode.token",
        "nsa.ops.select.*_kernels",
    ),
    "nsa.train.loss_kernels",
)  # imported late, and only where Triton came with torch
HUGGING_FACE = ("nsa.hf.*",)  # nothing else imports these modules, and nsa.hf says what is missing
# Which flags there are, which of them a subject reads, and bugs that read one.
READ_THE_ENVIRONMENT = (
    *("nsa.backends", "nsa_doctor.probes.hooks.environment_reads", "nsa_doctor.cli.search_path"),  # for children
    *("nsa_doctor.checks.env.env104_setting_not_followed", "nsa_doctor.checks.fwd.fwd214_variable_breaks_output"),
)
IMPORTERS = ("import_module", "importlib.import_module", "__import__")


@dataclass(frozen=True)
class Import:
    """One import; `at_once` unless it stands in a function or under TYPE_CHECKING."""

    module: str
    target: str
    place: str
    at_once: bool


def wrong_arrows(root: Path) -> list[str]:
    """One line for each import or read of the environment under `root` that breaks a rule."""
    files = {name: path for package in PACKAGES for name, path in modules(root, package)}
    declared, imports, wrong = declared_names(root), list[Import](), list[str]()
    for name, path in files.items():  # one tree at a time: a million nodes at once are slow to look through for garbage
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports += read_imports(name, tree, files, root)
        if "env" in text:
            wrong += [f"{path.relative_to(root)}:{line}: {why}" for line, why in environment_reads(name, tree)]
    at_once: dict[str, list[Import]] = {}
    for found in imports:
        if found.at_once:
            at_once.setdefault(found.module, []).append(found)
    wrong += [f"{found.place}: {why}" for found in imports if (why := objection(found, declared))]
    return sorted(wrong + heavy_start(at_once))


def modules(root: Path, package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((root / package).rglob("*.py")):
        yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path


def read_imports(module: str, tree: ast.Module, files: dict[str, Path], root: Path) -> Iterator[Import]:
    for node, late in with_lateness(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module if files[module].name == "__init__.py" else module.rpartition(".")[0]
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, node.module] if node.module else up)
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names]
        elif isinstance(node, ast.Call) and dotted(node.func) in IMPORTERS:
            targets = [part.value for part in node.args[:1] if isinstance(part, ast.Constant)]
        for target in targets:
            yield Import(module, target, f"{files[module].relative_to(root)}:{node.lineno}", not late)


def with_lateness(tree: ast.Module) -> Iterator[tuple[Any, bool]]:
    """Every node, and whether it runs later than the module's import, if at all."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    for node, late in waiting:
        late = late or is_late(node)
        yield node, late
        waiting += [(child, late) for child in children(node)]


def is_late(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
        isinstance(node, ast.If) and dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    )


def dotted(node: ast.AST) -> str:
    """`a.b.c` for such a chain of names, nothing for any other expression; ast.unparse takes fifty times as long."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def objection(found: Import, declared: set[str]) -> str | None:
    package, target = found.module.split(".")[0], found.target.split(".")[0]
    if target in (*PACKAGES, "tests"):
        if target not in PACKAGES[package]:
            return f"{package} may not import {target}"
        if package == "nsa":
            return layer_objection(found)
        return room_objection(found) if package == target == "nsa_doctor" else None
    if target == "pytest" and fits(found.module, PLUGIN_OF_PYTEST):
        return None
    if target == "triton" and fits(found.module, KERNELS):
        return None
    if target in ("transformers", "huggingface_hub") and fits(found.module, HUGGING_FACE):
        return None
    if found.at_once and target not in declared and target not in sys.stdlib_module_names:
        return f"{target} is not among the base dependencies"
    if target == "torch" and package == "nsa_doctor" and not fits(found.module, TORCH_IN_THE_DOCTOR):
        return f"{found.module} may not import torch"
    return None


def layer_objection(found: Import) -> str | None:
    layer = next((pattern for pattern in LAYERS if fits_layer(found.module, pattern)), None)
    if layer is None:
        return f"{found.module} has no place among the layers"
    branch, _, name = found.target.rpartition(".")
    is_own_part = layer == "nsa.ops.*.*" and branch == found.module.rpartition(".")[0] and name not in IMPLEMENTATIONS
    if is_own_part or fits(found.target, LAYERS[layer]):
        return None
    return f"{found.module} may not import {found.target}"


def room_objection(found: Import) -> str | None:
    here, there = room(found.module), room(found.target)
    if here is None:
        return f"{found.module} has no place among the rooms"
    if here == there or fits(there or "", ROOMS[here]):
        return None
    return f"{found.module} may not import {found.target}"


def room(module: str) -> str | None:
    """The room a module of the doctor lies in, the longest name that fits; None for one that the table lacks."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in (2, 1, 0))
    return next((name for name in names if name in ROOMS and (name or len(parts) <= 1)), None)


def fits_layer(module: str, pattern: str) -> bool:
    return module.count(".") == pattern.count(".") and fnmatch(module, pattern)


def fits(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(module, pattern) for pattern in patterns)


def declared_names(root: Path) -> set[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w.-]", dependency)[0].lower() for dependency in project["dependencies"]}
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def environment_reads(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if module in READ_THE_ENVIRONMENT:
        return
    for node in walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) and node.module == "os" else []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        if {"environ", "environb", "getenv"} & set(names):
            yield getattr(node, "lineno", 0), f"{module} reads the environment; nsa.backends alone does"


def heavy_start(at_once: dict[str, list[Import]]) -> list[str]:
    """How the command line comes to import torch before it knows what was asked, if it does."""
    seen, waiting = set(), [("nsa_doctor.cli.main", "nsa_doctor.cli.main")]
    while waiting:
        module, route = waiting.pop()
        for found in at_once.get(module, []):
            if found.target.split(".")[0] in ("torch", "nsa"):
                return [f"{found.place}: nsa-doctor imports {found.target} at its start: {route}"]
            for parent in parents(found.target):
                if parent not in seen:
                    seen.add(parent)
                    waiting.append((parent, f"{route} -> {parent}"))
    return []


def parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))
