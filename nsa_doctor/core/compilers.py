"""Which lines of a stack are those of a compiler at work, and which programs are compilers; imports none of them."""

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsa_doctor.core.internal import AUTOTUNING, COMPILING, RUNNING

Work = Literal["compiling", "autotuning", ""]
_NAMES = {"triton": "Triton", "torch": "torch.compile", "numba": "Numba"}
PROGRAMS = frozenset(
    (
        *("ptxas", "ptxas-blackwell", "nvcc", "cicc", "cudafe++", "fatbinary", "nvlink", "hipcc"),
        *("cc1", "cc1plus", "gcc", "g++", "cc", "c++", "clang", "clang++", "as", "collect2"),
        *("ld", "ld.gold", "ld.bfd", "ld.lld", "lld", "mold", "ninja", "make"),
    )
)


@dataclass(frozen=True)
class CompilerFiles:
    """Tells by the file of a line, in the folders where the packages are installed, whether a compiler is at work."""

    folders: tuple[tuple[str, str], ...]

    @classmethod
    def installed(cls) -> "CompilerFiles":
        """Those of this interpreter."""
        return cls(tuple(_folders(COMPILING)))

    def work_of(self, file: str, function: str) -> tuple[str, Work]:
        """Whose line it is, and what it does: compile, or time one of several kernels; nothing for any other line."""
        for package, folder in self.folders:
            if file.startswith(folder):
                inner = file.removeprefix(folder)
                if any(inner == each and function == name for each, name in AUTOTUNING[package]):
                    return _NAMES[package], "autotuning"
                is_compiling = inner.startswith(COMPILING[package]) and not inner.startswith(RUNNING[package])
                return (_NAMES[package], "compiling") if is_compiling else ("", "")
        return "", ""


def _folders(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    for package in packages:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield package, f"{Path(place)}/"
