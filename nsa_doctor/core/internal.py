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
