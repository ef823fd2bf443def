"""Whether code that runs looks at hashes of words, which are others in each process: by `hash()` or through a set."""

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.frames import FrameFilter

_NAMES = frozenset(("hash", "set", "frozenset"))
_SETS = frozenset(dis.opmap[name] for name in ("BUILD_SET", "SET_ADD"))
_OWN = 3  # rank of the subject's own code


@contextmanager
def own_code_that_runs(packages: tuple[str, ...]) -> Iterator[set[CodeType]]:
    """The functions of the subject that this thread calls in this region."""
    frames, codes, own = FrameFilter(packages), set[CodeType](), set[CodeType]()

    def look(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in codes:
            codes.add(code)
            if frames.rank_of(code) == _OWN:
                own.add(code)

    with calls_seen_by(look):
        yield own


def looks_at_hashes(code: CodeType) -> bool:
    """Whether a function, or what is written inside it, names `hash` or a set, or makes one by braces."""
    if not _NAMES.isdisjoint(code.co_names) or any(each.opcode in _SETS for each in dis.get_instructions(code)):
        return True
    return any(looks_at_hashes(inner) for inner in code.co_consts if isinstance(inner, CodeType))
