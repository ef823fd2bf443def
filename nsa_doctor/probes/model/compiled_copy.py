"""A copy of a module as `torch.compile` makes it, without code generation, and the lines that went into its graphs."""

import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import abspath
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.reached_lines import Lines
from nsa_doctor.probes.internal import graph_compiler, is_registered_by_a_user, part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.copies import by_deepcopy, from_state_dict
from nsa_doctor.probes.model.identity import loaded_files

_BACKEND = "aot_eager"
_OWN = 3  # rank of the subject's own code
_COMPILES = re.compile(r"torch\.compile\(|@torch\.compile\b|\.compile\((?:\)|backend|dynamic|fullgraph|mode)")
_SPEAKS_OF_IT = re.compile(
    rf"{_COMPILES.pattern}|torch\._dynamo|torch\.library|is_compiling|autograd\.Function|import triton"
)
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?:torch_dynamo_resume_in_)?(?P<function>.*?)(?:_at_\d+)?$',
    re.MULTILINE,
)


@dataclass
class CompiledCopy:
    """A compiled copy, of how many graphs and operations so far, and of which of the subject's own lines.

    `operators` are the lines that call operators which are not torch's: registered ones and autograd functions.
    """

    built: BuiltModule
    num_graphs: int = 0
    num_operations: int = 0
    lines: Lines = field(default_factory=dict)
    operators: list[Place] = field(default_factory=list)

    def compile(self, part: str) -> None:
        """Have torch compile that part of it: for the shapes of its first call, and for any once others come."""
        part_at(self.built.module, part).compile(backend=self._backend())

    def _backend(self) -> Callable[[torch.fx.GraphModule, list[Tensor]], Callable[..., Any]]:
        """Counts, and computes with torch's own operations, forward and backward."""
        make = graph_compiler(_BACKEND)
        frames = FrameFilter(self.built.subject.packages)

        def compiled(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
            self.num_graphs += 1
            self.num_operations += len(graph.graph.nodes)
            for node in graph.graph.nodes:
                own = [place for place in _places(node) if frames.rank(abspath(place.file)) == _OWN]
                for place in own:
                    self.lines.setdefault(place.file, set()).add(place.line)
                if own and is_registered_by_a_user(node.target):
                    self.operators.append(own[-1])
            return make(graph, inputs)

        return compiled


def compiled_copy(sp: BuiltModule, part: str = "") -> CompiledCopy | str:
    """A copy of which that part is compiled, all of it by default; the sentence that says why there is none."""
    copied = by_deepcopy(sp)
    if isinstance(copied, str):  # as of what is immutable; another module with its weights does as well
        copied = from_state_dict(sp)
    if isinstance(copied, str):
        return copied
    result = CompiledCopy(copied)
    result.compile(part)
    return result


def speaks_of_the_compiler(packages: Sequence[str]) -> bool:
    """Whether code of these packages asks if it is compiled, or has operators of its own that a compiler must know."""
    return _mentioned(_SPEAKS_OF_IT, packages)


def _mentioned(words: re.Pattern[str], packages: Sequence[str]) -> bool:
    return any(words.search("".join(linecache.getlines(file))) for file in loaded_files(packages).values())


def _places(node: torch.fx.Node) -> Iterator[Place]:
    """Where it was called, the outermost first."""
    for frame in _FRAME.finditer(node.meta.get("stack_trace") or ""):
        yield Place(file=frame["file"], line=int(frame["line"]), function=frame["function"])


@contextmanager
def compiling(packages: Sequence[str]) -> Iterator[None]:
    """A region that knows no graph, leaves none behind and warns of nothing; what compiles itself keeps its own."""
    compiles_itself = _mentioned(_COMPILES, packages)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not compiles_itself:
            torch.compiler.reset()
        try:
            yield
        finally:
            if not compiles_itself:
                torch.compiler.reset()
