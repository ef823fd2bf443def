"""The conventions by name, and the one that a command line means."""

from nsa_doctor.adapters.functions import flash, flash_kvcache, flash_varlen, flex, hf, native, nsa, sdpa
from nsa_doctor.core.function_spec import FunctionSpec
from nsa_doctor.core.like import CONVENTIONS
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.function import Convention
from nsa_doctor.subject.named import import_named

_FILES = (sdpa, flash, flash_varlen, flash_kvcache, flex, hf, nsa, native)
_KNOWN = {each.CONVENTION.name: each.CONVENTION for each in _FILES}
assert tuple(_KNOWN) == CONVENTIONS


def convention(name: str, spec: FunctionSpec) -> Convention:
    """The convention, ours or one of the user's by `package.module:name`.

    Raises SubjectUnusableError where it is none, or the spec asks for what it has no way to say.
    """
    found = import_named(name) if ":" in name else _KNOWN[name]
    if not isinstance(found, Convention):
        raise SubjectUnusableError(f"--like {name} must be a nsa_doctor.Convention, got {type(found).__name__}")
    if found.make is None and (used := [word for word in spec.words if word.partition("=")[0] in ("block", "topk")]):
        raise SubjectUnusableError(f"--spec {used[0]} is for sparse operators, --like nsa or native; leave it out")
    for word, why in found.refuses.items():
        if word in {each.partition("=")[0] for each in spec.words}:
            raise SubjectUnusableError(f"--spec {word} cannot be said under --like {name}: {why}")
    return found
