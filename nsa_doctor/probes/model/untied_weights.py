"""Methods that tie parameters by their names, which the constructor does not call as those of its neighbours do."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import is_named_elsewhere, text_of, tree_of
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.model.idle_initialisers import line_of, needed_arguments, started
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.subject.contract import Subject

_NAME = re.compile(r"_*(tie|share)_(\w+_)?(weights?|embeddings?|parameters?|params?)_*")
_OWN = 3  # the rank of the subject's own code


@dataclass(frozen=True)
class Untied:
    """A method that would make one parameter of two, at its first line; `neighbour` is a class that calls its own."""

    place: Place
    name: str
    pair: tuple[str, str]
    neighbour: str


def untied_weights(subject: Subject) -> Iterator[Untied]:
    """Those that nothing calls, or that the constructors of other classes of their file call and theirs does not."""
    frames = FrameFilter(subject.packages)
    seed_everything(subject.seed)
    with started() as codes:
        module = ask("build", lambda: subject.build(subject.seed), None)
    if nn.Module.load_state_dict.__code__ in codes:
        return  # what loads it may tie it too
    loaded = set(loaded_files(subject.packages).values())
    kinds: dict[type, str] = {}
    for path, part in module.named_modules():
        kinds.setdefault(type(part), path)
    for kind, path in kinds.items():
        for name in sorted(each for each in vars(kind) if _NAME.fullmatch(each)):
            function = inspect.unwrap(vars(kind)[name])
            code = getattr(function, "__code__", None)
            constructor = getattr(inspect.unwrap(kind.__init__), "__code__", None)
            if code is None or code in codes or constructor not in codes or frames.rank_of(code) != _OWN:
                continue
            if attempt(lambda kind=kind, name=name: needed_arguments(kind, name)) != []:
                continue
            neighbour = _neighbour(kind, name, Path(code.co_filename))
            pair = _tied_by(module, path, name)
            if pair is not None and (neighbour or not is_named_elsewhere(kind, name, frames, loaded)):
                place = Place(
                    module=path, module_class=kind.__name__, file=code.co_filename, line=line_of(code), function=name
                )
                yield Untied(place, name, pair, neighbour)


def _neighbour(kind: type, name: str, file: Path) -> str:
    """Another class of that file, with a method of that name, whose constructor calls it."""
    tree = tree_of(text_of(file))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] if tree is not None else []
    for each in classes:
        methods = {node.name: node for node in each.body if isinstance(node, ast.FunctionDef)}
        if each.name == kind.__name__ or name not in methods or "__init__" not in methods:
            continue
        calls = [node for node in ast.walk(methods["__init__"]) if isinstance(node, ast.Call)]
        if any(last_name(call.func) == name for call in calls):
            return each.name
    return ""


def _tied_by(root: nn.Module, path: str, name: str) -> tuple[str, str] | None:
    """Two parameters that are one once it was called, and two before."""
    with unobserved(), preserved_state():
        after = attempt(lambda: copied_module(root))
        if isinstance(after, Caught) or isinstance(attempt(getattr(part_at(after, path), name)), Caught):
            return None
        new = dict(after.named_parameters(remove_duplicate=False))
    old = dict(root.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for each, parameter in new.items():
        other = first.setdefault(id(parameter), each)
        if other != each and each in old and other in old and old[each] is not old[other]:
            return other, each
    return None
