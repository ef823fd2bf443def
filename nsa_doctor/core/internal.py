"""What the doctor takes from CPython that CPython does not promise: its private names are used here alone.

Those of torch are in `probes/internal.py`: this room does not import torch.
"""

import _compat_pickle
import sys
from types import FrameType

COMPILER = "torch._dynamo"  # torch's compiler as a module, for processes that import it before they are copied


def frame_above(depth: int) -> FrameType:
    """The frame so many calls above the caller's own: `sys._getframe`, of CPython.

    Public: `inspect.currentframe`, which may be None, and a walk along `f_back`.
    """
    return sys._getframe(depth + 1)


def frames_of_threads() -> dict[int, FrameType]:
    """The innermost frame of every thread, by the thread's number: `sys._current_frames`, of CPython.

    Public: `faulthandler.dump_traceback`, which writes text.
    """
    return sys._current_frames()


def name_in_python_3(module: str, name: str) -> tuple[str, str]:
    """What a pickle of Python 2 names, by its name of today: the tables of `_compat_pickle`, of CPython since 3.1.

    Public: `pickle.Unpickler(fix_imports=True)`, which would import it.
    """
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def may_compile() -> bool:
    """Whether torch's compiler is imported, or flex attention is, which imports it at its first call.

    By the names of their modules, since torch 2.5. Public: none; `torch.compiler` imports it to answer, for seconds.
    """
    return not sys.modules.keys().isdisjoint((COMPILER, "torch.nn.attention.flex_attention"))


# Files of compilers, by package: lines of them are on a stack while something is compiled. A name that ends in / is a
# folder's. Public: none; `torch.compiler` says whether a graph is traced, and nothing of what follows.
COMPILING: dict[str, tuple[str, ...]] = {
    "triton": ("compiler/", "backends/", "runtime/build.py"),
    "torch": ("_dynamo/convert_frame.py", "_inductor/", "utils/cpp_extension.py"),
    "numba": ("core/",),
}
# Files of them that are on a stack while what they have compiled runs.
RUNNING: dict[str, tuple[str, ...]] = {
    "triton": ("backends/nvidia/driver.py", "backends/amd/driver.py"),
    "torch": (
        "_inductor/runtime/",
        "_inductor/output_code.py",
        "_inductor/utils.py",
        "_inductor/cudagraph_trees.py",
        "_inductor/cudagraph_utils.py",
    ),
    "numba": (),
}
# Functions of them that try a kernel in several sizes, each of which is compiled first.
AUTOTUNING: dict[str, tuple[tuple[str, str], ...]] = {
    "triton": (("runtime/autotuner.py", "_bench"),),
    "torch": (("_inductor/runtime/triton_heuristics.py", "bench"),),
    "numba": (),
}
