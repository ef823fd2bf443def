"""Our package `nsa` beside one of the same name that somebody examines: where their code runs, theirs wins."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from nsa_doctor.core.package import PACKAGE_ROOT

NAME = "nsa"
OWN_FOLDER = PACKAGE_ROOT.parent / NAME


def let_theirs_win() -> None:
    """Have `import nsa` give the package of that name that is not ours, where there is one; ours is set aside."""
    if _their_spec() is None:
        return
    _Finder.install(_their_spec)
    own = [name for name in _loaded() if _is_own(sys.modules[name].__spec__)]
    _SET_ASIDE.update({name: sys.modules.pop(name) for name in own})


def let_ours_win() -> None:
    """Have `import nsa` give ours, whatever the search path holds: for processes of the doctor alone."""
    if not _is_own(PathFinder.find_spec(NAME, None)):
        _Finder.install(_own_spec)


def is_ours(packages: Sequence[str]) -> bool:
    """Whether these packages of a subject are our own `nsa`, and not one of that name."""
    loaded = sys.modules.get(NAME)
    return NAME in packages and (loaded is None or _is_own(loaded.__spec__))


@contextmanager
def ours() -> Iterator[None]:
    """A region in which what is imported gets our `nsa`, whatever is on the search path, also where theirs has won."""
    finders, has_theirs_won = list(sys.meta_path), _has_theirs_won()
    theirs = {name: sys.modules.pop(name) for name in _loaded() if not _is_own(sys.modules[name].__spec__)}
    sys.modules.update(_SET_ASIDE)
    _Finder.install(_own_spec)
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        if has_theirs_won:
            _SET_ASIDE.update({name: sys.modules.pop(name) for name in _loaded()})
        sys.modules.update(theirs)


_SET_ASIDE: dict[str, ModuleType] = {}


_Find = Callable[[], ModuleSpec | None]


class _Finder:
    """Finds `nsa` alone, where it is asked to."""

    def __init__(self, find: _Find) -> None:
        self.find = find

    @classmethod
    def install(cls, find: _Find) -> None:
        """In place of any other of its kind, before all finders there are."""
        sys.meta_path[:] = [cls(find), *(each for each in sys.meta_path if not isinstance(each, cls))]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """What Python asks of a finder."""
        return self.find() if name == NAME else None


def _their_spec() -> ModuleSpec | None:
    """A package `nsa` that is not ours: on the search path, or found in another way (an editable installation)."""
    elsewhere = [place for place in sys.path if Path(place or os.curdir).resolve() != OWN_FOLDER.parent]
    specs = [PathFinder.find_spec(NAME, elsewhere)]
    others = (each for each in sys.meta_path if each is not PathFinder and not isinstance(each, _Finder))
    specs += [finder.find_spec(NAME, None) for finder in others if hasattr(finder, "find_spec")]
    return next((spec for spec in specs if spec is not None and not _is_own(spec) and _has_code(spec)), None)


def _has_code(spec: ModuleSpec) -> bool:
    """Not of a folder without `__init__.py` that holds data alone, such as the configurations we ship."""
    folders = () if spec.origin else (spec.submodule_search_locations or ())
    return bool(spec.origin) or any(True for folder in folders for _ in Path(folder).rglob("*.py"))


def _own_spec() -> ModuleSpec | None:
    return PathFinder.find_spec(NAME, [str(OWN_FOLDER.parent)])


def _is_own(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(OWN_FOLDER)


def _has_theirs_won() -> bool:
    return any(isinstance(each, _Finder) and each.find is _their_spec for each in sys.meta_path)


def _loaded() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
