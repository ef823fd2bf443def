"""What counts as compiling: lines of installed compilers, where no line of the subject's runs below them."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
import torch

from nsa_doctor.core.compilers import CompilerFiles
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import AUTOTUNING, COMPILING, RUNNING
from nsa_doctor.probes.hooks import compile_watch
from nsa_doctor.probes.hooks.compile_watch import CompileWatch

TORCH = f"{Path(torch.__file__).parent}/"
TRITON = "/somewhere/site-packages/triton/"
NUMBA = "/somewhere/site-packages/numba/"
FILES = CompilerFiles((("triton", TRITON), ("torch", TORCH), ("numba", NUMBA)))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def through(file: str, function: str, call: Callable[[], object]) -> object:
    """Call from a function of that name in that file."""
    names: dict[str, Callable] = {}
    exec(compile(f"def {function}(call):\n    return call()\n", file, "exec"), names)
    return names[function](call)


class OnlyMine(FrameFilter):
    """Takes files below /me alone for the subject's, and lines of this test for nobody's."""

    def rank_of(self, code: CodeType) -> int:
        return 3 if code.co_filename.startswith("/me/") else 0


def watch(clock: Callable[[], float] = time.monotonic) -> CompileWatch:
    return CompileWatch(OnlyMine, threading.get_ident(), FILES, clock)


def seen_here(looking: CompileWatch) -> str:
    return looking._in_stack(sys._getframe(), is_main=True)


@pytest.mark.parametrize(
    ("file", "function", "found"),
    [
        (f"{TRITON}compiler/compiler.py", "compile", "Triton"),
        (f"{TRITON}backends/nvidia/compiler.py", "make_cubin", "Triton"),
        (f"{TRITON}runtime/autotuner.py", "_bench", "Triton"),
        (f"{TRITON}runtime/autotuner.py", "run", ""),
        (f"{TRITON}runtime/jit.py", "run", ""),
        (f"{TRITON}backends/nvidia/driver.py", "__call__", ""),
        (f"{TORCH}_inductor/graph.py", "codegen", "torch.compile"),
        (f"{TORCH}_dynamo/convert_frame.py", "_compile", "torch.compile"),
        (f"{TORCH}_dynamo/eval_frame.py", "compile_wrapper", ""),
        (f"{TORCH}_inductor/output_code.py", "__call__", ""),
        (f"{TORCH}utils/cpp_extension.py", "load_inline", "torch.compile"),
        (f"{NUMBA}core/dispatcher.py", "compile", "Numba"),
        (f"{NUMBA}np/ufunc/parallel.py", "_launch_threads", ""),
        ("/home/me/triton/compiler/compiler.py", "compile", ""),
    ],
)
def test_lines_of_compilers_at_work_are_not_those_of_what_they_made(file: str, function: str, found: str) -> None:
    assert through(file, function, lambda: seen_here(watch())) == found


def test_a_loop_of_the_subjects_that_a_compiler_has_called_is_not_compiling() -> None:
    def loops() -> object:
        return through("/me/mask.py", "loops", lambda: seen_here(watch()))

    assert through(f"{TORCH}_inductor/graph.py", "codegen", loops) == ""


def test_a_kernel_that_is_timed_for_long_does_not_return() -> None:
    clock = Clock()
    looking = watch(clock)

    def looks() -> list[str]:
        found = []
        for now in (0.0, 10.0, 21.0):
            clock.now = now
            found.append(seen_here(looking))
        return found

    assert through(f"{TRITON}runtime/autotuner.py", "_bench", looks) == ["Triton", "Triton", ""]
    assert through(f"{TRITON}runtime/autotuner.py", "_bench", lambda: seen_here(looking)) == "Triton"  # of the next one


def test_a_thread_that_waits_in_a_compilers_pool_is_not_compiling() -> None:
    looking, found = watch(), []

    def look() -> None:
        found.append(looking._in_stack(sys._getframe(), is_main=False))

    thread = threading.Thread(target=lambda: through(f"{TORCH}_inductor/codecache.py", "_read", look))
    thread.start()
    thread.join()
    assert found == [""]


def test_the_files_of_torchs_compiler_are_where_they_are_looked_for() -> None:
    names = [*COMPILING["torch"], *RUNNING["torch"], *(file for file, _ in AUTOTUNING["torch"])]
    assert [name for name in names if not (Path(TORCH) / name).exists()] == []


def test_programs_count_while_they_use_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    monkeypatch.setattr(compile_watch, "_PROC", tmp_path)
    monkeypatch.setattr(compile_watch, "_below", lambda pid: iter([7]))
    looking = watch()
    found = []
    for name, ticks in (("ptxas", 3), ("ptxas", 9), ("ptxas", 9), ("my compiler", 20)):
        stat.write_text(f"7 ({name}) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0")
        found.append(looking._below())
    assert found == ["ptxas", "ptxas", "", ""]
