"""Uses of names that torch, CPython or another library keeps to itself, outside of our modules `internal`."""

import ast
import ctypes
import functools
import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from tests.arrows import IMPORTERS, PACKAGES, dotted, modules
from tests.syntax_trees import walk

INTERNAL = (
    *("nsa.nn.internal", "nsa.train.internal", "nsa.hf.internal", "nsa.ops.hopper.internal"),
    *("nsa_doctor.core.internal", "nsa_doctor.probes.internal"),
)
UNPROMISED = ("torch.multiprocessing.reductions", "torch.utils.flop_counter")  # though no underscore says so
# Public by Python's own reference: of a named tuple, and of `os`.
DOCUMENTED = frozenset({"_asdict", "_exit", "_fields", "_field_defaults", "_make", "_replace"})
REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})  # of nn.Module
_NAMING = (ast.Call, ast.Constant, ast.Import, ast.ImportFrom, ast.Compare)
READERS = ("getattr", "hasattr", "setattr", "delattr", "object.__getattribute__", "object.__setattr__")


def private_uses(root: Path) -> list[str]:
    """One line for each use under `root` of a name that is private and not ours."""
    own: set[str] = set()
    may_be_wrong: list[tuple[Path, ast.AST]] = []
    for package in PACKAGES:  # one tree at a time: a million nodes at once are slow to look through for garbage
        for name, path in modules(root, package):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            own.update(defined_names(tree))
            if name not in INTERNAL:
                may_be_wrong += [(path, node) for node in walk(tree) if may_be_a_use(node)]
    return [
        f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}"
        for path, node in may_be_wrong
        if is_use(node, own)
    ]


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes, variables and attributes that a module defines."""
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            yield node.attr


def uses(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of each use in one module, where `own` are the names that our packages define."""
    for node in walk(tree):
        if may_be_a_use(node) and is_use(node, own):
            yield getattr(node, "lineno", 0), ast.unparse(node)


def may_be_a_use(node: ast.AST) -> bool:
    """Whether it names something private, or imports anything, whoever defines that."""
    if isinstance(node, ast.Attribute):
        return is_private(node.attr)
    return isinstance(node, _NAMING) and (any(names_read(node)) or any(map(is_unpromised, imported(node))))


def is_use(node: ast.AST, own: set[str]) -> bool:
    return any(is_foreign(name, of, own) for of, name in names_read(node)) or any(map(is_unpromised, imported(node)))


def names_read(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What private attributes a piece of code reads or writes, with the object in source text."""
    match node:
        case ast.Attribute(value=value, attr=name) if is_private(name):
            yield ast.unparse(value), name
        case ast.Call(func=function, args=[value, ast.Constant(value=str(name)), *_]) if (
            is_private(name) and dotted(function) in READERS
        ):
            yield ast.unparse(value), name
        case ast.Constant(value=str(name)) if name in REGISTRIES:
            yield "", name


def is_foreign(name: str, of: str, own: set[str]) -> bool:
    if not is_private(name) or name in DOCUMENTED:
        return False
    if of in ("self", "cls", "super()"):  # an attribute of ours, unless it comes from a base class
        return name not in own and name in FOREIGN
    return name not in own or name in FOREIGN


def imported(node: ast.AST) -> Iterator[str]:
    """The dotted names that a piece of code imports, or looks for among the modules that are loaded."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if dotted(function) in (*IMPORTERS, "sys.modules.get"):
                yield name
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[looked_in]):
            if dotted(looked_in) == "sys.modules":
                yield name


def is_unpromised(dotted: str) -> bool:
    parts = dotted.split(".")
    return parts[0] not in PACKAGES and (any(map(is_private, parts)) or dotted.startswith(UNPROMISED))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _foreign() -> frozenset[str]:
    """Private names of what we handle: a module of ours that has one too may not read it of another object."""
    x = torch.ones(1, requires_grad=True)
    objects = (
        *(torch, torch._C, torch.Tensor, nn.Parameter, x.untyped_storage(), x.exp().grad_fn, nn.Module(), nn.RNN),
        *(torch.autograd.Function, torch.autograd.function, torch.ops.aten.add.Tensor, torch.optim.SGD([x])),
        *(sys, os, gc, inspect, threading, threading.Thread, ctypes, functools, pickle, subprocess, subprocess.Popen),
    )
    return frozenset(name for each in objects for name in dir(each) if is_private(name))


FOREIGN = _foreign()
