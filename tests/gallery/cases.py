"""The gallery's cases, read from its files: what each is, which module is at fault, and on which line."""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
FAMILIES = (
    "gate_and_init",
    "numerics",
    "autograd_and_inplace",
    "optimizer_and_loop",
    "mask_causality_batch_selection_decode",
    "hang_and_throughput",
)
HEALTHY = "healthy"
MARK = "# here"
SAME_ILLNESS = {"FWD201": {"GRD103"}}  # seen from the other side: a gradient that reaches the future is the leak


@dataclass(frozen=True, kw_only=True)
class Case:
    """One file of the gallery.

    `modules` are the right answers to where, `lines` the marked ones, and `codes` those a reader would know it by.
    """

    name: str
    family: str
    file: Path
    symptom: str
    modules: tuple[str, ...] = ()
    codes: frozenset[str] = frozenset()
    lines: tuple[int, ...] = ()

    @property
    def import_name(self) -> str:
        folders = () if self.family == HEALTHY else ("bugs",)
        return ".".join(("tests.gallery", *folders, self.family, self.name))

    @property
    def spec(self) -> str:
        """What `nsa-doctor run --subject` takes."""
        return f"{self.import_name}:make"

    def load(self) -> ModuleType:
        return importlib.import_module(self.import_name)


def read_cases(families: tuple[str, ...] = (*FAMILIES, HEALTHY)) -> list[Case]:
    """Every case of these families, in their order and then by name."""
    return [case for family in families for case in _read_family(family)]


def _read_family(family: str) -> Iterator[Case]:
    folder = HERE / HEALTHY if family == HEALTHY else HERE / "bugs" / family
    for file in sorted(folder.glob("[!_]*.py")):
        text = file.read_text(encoding="utf-8").splitlines()
        lines = tuple(number for number, line in enumerate(text, start=1) if line.endswith(MARK))
        case = Case(name=file.stem, family=family, file=file, symptom="", lines=lines)
        module = case.load()
        at_fault = getattr(module, "MODULE", ())
        yield Case(
            name=file.stem,
            family=family,
            file=file,
            symptom=(module.__doc__ or "").strip(),
            modules=(at_fault,) if isinstance(at_fault, str) else tuple(at_fault),
            codes=_with_same(getattr(module, "CODES", ())),
            lines=lines,
        )


def _with_same(codes: Iterable[str]) -> frozenset[str]:
    return frozenset(codes).union(*(SAME_ILLNESS.get(code, ()) for code in codes))
