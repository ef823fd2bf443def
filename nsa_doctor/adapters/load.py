"""Adapters: one per kind of subject, and the way from a command line to one."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.like import HUGGING_FACE
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.subject.contract import Subject, SubjectUnusableError, WrongOutputError
from nsa_doctor.subject.named import import_named
from nsa_doctor.subject.request import SubjectRequest


def load_subject(
    request: SubjectRequest,
    asking: Callable[[int], None] = lambda length: None,
    made: Callable[[nn.Module], None] = lambda module: None,
) -> Subject:
    """The subject asked for; `made` receives a foreign module, and `asking` each length before it is tried at it.

    Raises SubjectUnusableError, or SubjectFailedError when a factory itself raises.
    """
    if request.spec is not None:
        factory = _factory(request)
        subject = _declaring(adapt(request, factory, asking, made), request.declared)
        return subject if request.train is None else _training(subject, request.train)
    from nsa.strict import ConfigError
    from nsa_doctor.adapters.nsa_layer import builtin_subject  # a foreign subject need not wait for nsa

    try:
        return builtin_subject(request.config)
    except ConfigError as error:
        raise SubjectUnusableError(str(error)) from error


def _factory(request: SubjectRequest) -> Callable[[], Any]:
    """What makes the subject: a model of transformers, or the callable that the user names."""
    spec = str(request.spec)
    if spec.startswith(HUGGING_FACE):
        from nsa_doctor.adapters.hugging_face_model import adapter_of  # no other subject needs transformers

        return lambda: adapter_of(spec.removeprefix(HUGGING_FACE), request.seed, request.size)
    return import_factory(spec)


def _declaring(subject: Subject, words: Sequence[str]) -> Subject:
    """The subject with what is declared of it on the command line, which names it from then on."""
    added = [word for word in words if word not in subject.spec]
    if not added:
        return subject
    return replace(subject, spec=(*subject.spec, *added), options=(*subject.options, "--spec", ",".join(added)))


def _training(subject: Subject, name: str) -> Subject:
    """The subject with the training step or the loop of that name.

    A step is called with module, optimizer and batch, and returns its loss; a loop is begun around the module alone.
    Raises SubjectUnusableError for what is neither.
    """
    given = import_named(name, "--train")
    options = (*subject.options, "--train", name)
    if _binds(given, "module", "optimizer", "batch"):
        return replace(subject, train_step=given, options=options)
    looped = replace(subject, loop=given, train_step=None, options=options)
    if _binds(given, "module"):
        try:
            BegunLoop.of(looped)
        except SubjectFailedError as failure:
            if not isinstance(failure.caught.error, WrongOutputError):
                raise
        else:
            return looped
    raise SubjectUnusableError(
        f"--train {name} must be a function step(module, optimizer, batch) that returns its loss, or begin(module) "
        f"that returns a TrainingLoop"
    )


def _binds(function: Any, *arguments: str) -> bool:
    """Whether it can be called with these."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def import_factory(spec: str) -> Callable[[], Any]:
    """The callable that `package.module:factory` names, looked for in the current folder too."""
    factory = import_named(spec)
    if isinstance(factory, Subject):
        return lambda: factory
    if not callable(factory) or isinstance(factory, nn.Module):
        kind = type(factory).__name__
        raise SubjectUnusableError(f"subject {spec} must be a callable that returns a new nn.Module, got {kind}")
    _check_callable_bare(spec, factory)
    return factory


def _check_callable_bare(spec: str, factory: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # builtins tell no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        name = spec.rpartition(":")[2]
        raise SubjectUnusableError(
            f"subject {spec} must be callable without arguments: {error}; name a function that returns {name}(…)"
        ) from error
