"""Which lines of a stack belong to the subject, and which to Python, torch or the doctor itself."""

import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from types import CodeType, TracebackType

from nsa_doctor.core.like import FUNCTION, HUGGING_FACE, LIBRARY, names_a_class
from nsa_doctor.core.package import is_doctors, own_file


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class FrameFilter:
    """Tells the subject's own files from everything its calls pass through.

    `packages` are top-level package names that count as the subject's wherever they are installed; of the doctor's own
    package what checks inject and the regression cases do, and nothing else, also where it is among them.
    """

    packages: tuple[str, ...] = ()
    _own: tuple[str, ...] = field(init=False, repr=False)
    _doctor: str = field(init=False, repr=False)
    _checks: str = field(init=False, repr=False)
    _machinery: tuple[str, ...] = field(init=False, repr=False)
    _torch: tuple[str, ...] = field(init=False, repr=False)
    _ranks: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_doctor", f"{own_file()}/")
        object.__setattr__(self, "_checks", f"{own_file('checks')}/")
        own = _folders(("nsa", *self.packages))
        torch = _folders(("torch",))
        paths = sysconfig.get_paths()
        machinery = [paths["stdlib"] + "/", paths["platstdlib"] + "/"]
        object.__setattr__(self, "_own", tuple(own))
        object.__setattr__(self, "_torch", tuple(torch))
        object.__setattr__(self, "_machinery", tuple(machinery))

    def rank_of(self, code: CodeType) -> int:
        """The rank of code that runs: of a check's file what it plants is the subject's, and the rest the doctor's."""
        if code.co_filename.startswith(self._checks) and "planted.<locals>" not in code.co_qualname:
            return 0
        return self.rank(code.co_filename)

    def rank(self, file: str) -> int:
        """3 for the subject's own code, 2 for a library's, 1 for torch's modules, 0 for what is never to blame."""
        if file not in self._ranks:
            self._ranks[file] = self._ranked(file)
        return self._ranks[file]

    def _ranked(self, file: str) -> int:
        if file.startswith("<") or _GENERATED.search(file):
            return 0
        if file.startswith(self._doctor):
            return 0 if is_doctors(file) and not file.startswith(self._checks) else 3
        if file.startswith(self._own):
            return 3
        if file.startswith(self._torch):
            return 1 if "/torch/nn/" in file and not file.endswith("/nn/modules/module.py") else 0
        if "-packages/" in file:
            return 0 if _WRAPPERS.search(file) else 2
        return 0 if file.startswith(self._machinery) else 3

    def is_library(self, file: str) -> bool:
        """Whether it is an installed package's that is neither torch nor the doctor nor the subject's own."""
        is_other = not file.startswith((*self._own, *self._torch, *self._machinery[-1:]))
        return is_other and "-packages/" in file

    def library_of_traceback(self, traceback: TracebackType | None) -> str:
        """The deepest line of a library in an exception's traceback, below all of the subject's own code."""
        found = ""
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self.rank_of(code) == 3:
                found = ""
            elif self.is_library(code.co_filename):
                found = f"{code.co_filename}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        return found

    def deepest(self, innermost_first: Iterable[Line]) -> Line | None:
        """The innermost line of the subject's own code; failing that of a library, then of torch's modules."""
        best: Line | None = None
        best_rank = 0
        for line in innermost_first:
            rank = self.rank(line.file)
            if rank > best_rank:
                best, best_rank = line, rank
            if rank == 3:
                break
        return best

    def of_traceback(self, traceback: TracebackType | None) -> Line | None:
        """The deepest line of the subject's code in an exception's traceback."""
        best: Line | None = None
        best_rank = 0
        while traceback is not None:
            code = traceback.tb_frame.f_code
            rank = self.rank_of(code)
            if rank and rank >= best_rank:
                best = Line(file=code.co_filename, line=traceback.tb_lineno, function=code.co_name)
                best_rank = rank
            traceback = traceback.tb_next
        return best

    def is_raised_in_own(self, traceback: TracebackType | None) -> bool:
        """Whether the line that raised is the subject's own, not one of what it called."""
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and self.rank_of(traceback.tb_frame.f_code) == 3

    def of_dump(self, dump: str) -> list[Line]:
        """What faulthandler wrote, from the deepest line of the subject's code outwards; the doctor's own thread first.

        Empty when no thread runs the subject's code.
        """
        threads = _threads(dump)
        threads.sort(key=lambda lines: not any(is_doctors(line.file) for line in lines))
        for lines in threads:
            if found := self.deepest(lines):
                return lines[lines.index(found) :]
        return []

    def busy_in_dump(self, dump: str) -> list[Line]:
        """The lines at which threads beside the doctor's own run the subject's code, and do not wait in a call."""
        others = [lines for lines in _threads(dump) if lines and not any(is_doctors(line.file) for line in lines)]
        return [lines[0] for lines in others if self.rank(lines[0].file) == 3]


def top_package(spec: str | None) -> tuple[str, ...]:
    """The top-level packages that hold the subject's code, by how it is named; none of the built-in subject."""
    if spec is not None and spec.startswith(HUGGING_FACE):
        name = spec.removeprefix(HUGGING_FACE)
        return (LIBRARY, *(top_package(name) if names_a_class(name) else ()))
    return () if spec is None else (spec.removeprefix(FUNCTION).partition(":")[0].partition(".")[0],)


_FORK = own_file("isolation", "forked.py")
_GENERATED = re.compile(r"/torchinductor_[^/]*/")  # what torch.compile wrote
_WRAPPERS = re.compile(r"-packages/(?:jaxtyping|beartype|numpy|einops|pluggy|_pytest|typeguard)/")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


def is_before_the_fork(file: str) -> bool:
    """Whether a frame of this file, and all outside it, are what a fork has from the process it was forked from."""
    return file == _FORK


def _threads(dump: str) -> list[list[Line]]:
    return [_lines(part) for part in re.split(r"^(?=(?:Current thread|Thread|Stack) )", dump, flags=re.MULTILINE)]


def _lines(text: str) -> list[Line]:
    lines = (
        Line(file=found["file"], line=int(found["line"]), function=found["function"]) for found in _FRAME.finditer(text)
    )
    return list(takewhile(lambda line: not is_before_the_fork(line.file), lines))


def _folders(packages: Iterable[str]) -> list[str]:
    """Folders (or single files) of top-level packages, found without importing them."""
    folders: list[str] = []
    for name in packages:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is None:
            continue
        places = _paths(getattr(spec, "submodule_search_locations", None))
        files = _paths(getattr(spec, "origin", None))
        folders += [f"{place.rstrip('/')}/" for place in places] or files
    return folders


def _paths(places: object) -> list[str]:
    """The paths among what a package says of itself: it may say paths, bytes, one alone or anything else."""
    listed = places if isinstance(places, Iterable) and not isinstance(places, (str, bytes)) else [places]
    paths = (os.fsdecode(place) for place in listed if isinstance(place, (str, bytes, os.PathLike)))
    return [path for path in paths if path]
