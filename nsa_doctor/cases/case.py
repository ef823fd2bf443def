"""What cases are made of: how a bug is put back into the code that ships, and what has to be said of it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from nsa_doctor.cases.record import Expectation, NotForThisMachineError
from nsa_doctor.core.finding import Finding, Report

_Error = TypeVar("_Error", bound=Exception)


def found(code: str, *, module: str = "", file: str = "", function: str = "", says: str = "") -> Expectation:
    """The first finding has this code, stands at this place (`file` by its name), and its message holds `says`."""

    def expect(report: Report) -> str:
        if not report.findings:
            return f"nothing was found, and {code} had to be"
        first = report.findings[0]
        if code not in (first.code, *first.also):
            return f"found was {first.code}, and {code} had to be: {first.message}"
        return next(_differences(first, {"module": module, "file": file, "function": function}, says), "")

    return expect


def faulty_layer(seams: Mapping[str, Any], config: str = "m7c_125m_fast_log", **changes: Any) -> Any:
    """The built-in subject at a configuration with `changes`, in a process where names of `nsa` are replaced.

    For the child process that examines it: nothing is put back.
    """
    from nsa.config import load_config
    from nsa_doctor.adapters.nsa_layer import layer_subject

    for name, faulty in seams.items():
        patch(name, faulty).start()
    return layer_subject(load_config(config).model.model_copy(update=changes))


def raised(kind: type[_Error], call: Callable[[], object]) -> _Error | None:
    """What a call raises of this kind, None where it returns."""
    try:
        call()
    except kind as error:
        return error
    return None


def examine(subject: str, codes: str, *words: str) -> Callable[[Path], Sequence[str]]:
    """`nsa-doctor run` of these checks on a factory named `module:function`."""
    return lambda folder: ["run", "--select", codes, "--subject", subject, "--profile", "smoke", "--jobs", "1", *words]


def on_cuda(command: Callable[[Path], Sequence[str]]) -> Callable[[Path], Sequence[str]]:
    """The same command on a CUDA device; not for a machine that has none."""

    def words(folder: Path) -> Sequence[str]:
        require_cuda()
        return [*command(folder), "--device", "cuda"]

    return words


def require_cuda() -> None:
    """Raises NotForThisMachineError where there is no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise NotForThisMachineError("it needs a CUDA device")


def _differences(finding: Finding, place: Mapping[str, str], says: str) -> Iterator[str]:
    for name, wanted in place.items():
        actual = getattr(finding.where, name)
        is_there = Path(actual).name == wanted if name == "file" else actual == wanted
        if wanted and not is_there:
            yield f"{finding.code} stands at the {name} {actual!r}, and had to at {wanted!r}: {finding.message}"
    if says and not re.search(says, finding.message):
        yield f"{finding.code} does not say {says!r}: {finding.message}"
