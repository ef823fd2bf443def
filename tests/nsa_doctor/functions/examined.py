"""Functions as a test examines them: in this process, with any of the checks of functions."""

from collections.abc import Callable
from typing import Any

from nsa_doctor.adapters.functions.known import convention
from nsa_doctor.adapters.functions.load_function import check_call, place_of, without_refused_gradients
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.check import Profile
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.finding import Result
from nsa_doctor.core.function_spec import function_spec
from nsa_doctor.subject.function import FunctionSubject


def subject_of(
    function: Callable[..., Any],
    like: str,
    spec: str | None = "causal",
    dtype: str = "float32",
    seed: int = 0,
    profile: Profile = "smoke",
    reference: Callable[..., Any] | None = None,
    device: str = "cpu",
) -> FunctionSubject:
    """A function as `--subject fn:…` would give it."""
    read = function_spec(spec)
    options = ("--subject", "fn:tests:function", "--like", like, *(("--spec", spec) if spec else ()))
    subject = FunctionSubject(
        name=getattr(function, "__name__", "function"),
        function=function,
        convention=convention(like, read),
        spec=read,
        reference=reference,
        dtype=dtype,
        device=device,
        seed=seed,
        profile=profile,
        options=options,
        packages=("tests",),
        place=place_of(function),
    )
    check_call(subject)
    return without_refused_gradients(subject)


def codes() -> list[str]:
    """The checks of functions."""
    return [entry.manual.code for entry in registry.of_kind("function")]


def short_codes() -> list[str]:
    """Those that take no minute to compile in."""
    return [entry.manual.code for entry in registry.of_kind("function") if entry.profile != "full"]


def results(subject: FunctionSubject, chosen: list[str] | None = None) -> dict[str, Result]:
    """How each check ends, one cause once."""
    ended = [judge(registry.load(code), subject) for code in chosen or short_codes()]
    return {result.code: result for result in deduplicate(ended, registry.entries())}
