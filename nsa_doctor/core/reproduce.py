"""The command lines that reproduce a finding or a report: all of them are built here."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from nsa_doctor.core.examination_request import COMPILE_SECONDS, ExaminationRequest
from nsa_doctor.core.measurement import Point

SECONDS: Mapping[str, float] = {  # --timeout of each command where none is given
    "anomaly": 60.0,
    "fuzz": 20.0,
    "gate-init": 30.0,
    "gate-stats": 60.0,
    "go-no-go": 30.0,
    "matrix": 300.0,
    "regressions": 60.0,
    "run": 30.0,
    "smoke": 30.0,
    "sweep": 60.0,
    "throughput": 120.0,
}
_USUAL = {"device": "cpu", "profile": "quick", "compile_timeout": COMPILE_SECONDS}


def reproduce(command: str, words: Iterable[str] = (), /, **options: Any) -> str:
    """One line to paste: the command, these words, then the options that are not what the command takes by itself.

    An option that is None or False was not given, True is a flag, and a tuple is given several times.
    """
    given = list(words)
    end = given.index("--") if "--" in given else len(given)  # what follows are no options
    added = [word for name, value in options.items() for word in _option(command, name, value)]
    return shlex.join(["nsa-doctor", command, *given[:end], *added, *given[end:]])


def beside(codes: Sequence[str], line: str) -> str:
    """The line, with these codes in what it selects: a check that looks at what they leave finds nothing without."""
    return re.sub(r"(?<= --select )\S+", lambda selected: ",".join((*codes, selected[0])), line, count=1)


def arguments(places: Sequence[str], options: Sequence[str] = ()) -> tuple[str, ...]:
    """Words of a command that takes places (files, folders), one of which may begin like an option."""
    if any(place.startswith("-") for place in places):
        return (*options, "--", *places)
    return (*places, *options)


class Examined(Protocol):
    """What a line says of a `Subject`."""

    @property
    def options(self) -> tuple[str, ...]: ...
    @property
    def device(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def profile(self) -> str: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words that name the subject, and a run's conditions; `dtype` is the one examined when none is given.

    `timeout` and `compile_timeout` None are not known; `lengths` are those that an anomaly run is restricted to.
    """

    options: tuple[str, ...] = ()
    device: str = "cpu"
    seed: int = 0
    dtype: str = "float32"
    profile: str = "quick"
    timeout: float | None = None
    compile_timeout: float | None = None
    lengths: tuple[int, ...] = ()

    @classmethod
    def asked(cls, examination_request: ExaminationRequest, facts: Mapping[str, Any]) -> Self:
        """By the facts of a subject that was loaded; of one that was not, by what was asked for."""
        return cls(
            options=tuple(facts.get("options", _named(examination_request))),
            device=examination_request.device,
            seed=examination_request.seed,
            dtype=facts.get("dtype", "float32"),
            profile=examination_request.profile,
            timeout=examination_request.timeout,
            compile_timeout=examination_request.compile_timeout,
            lengths=examination_request.lengths if examination_request.are_all_lengths else (),
        )

    @classmethod
    def on(cls, subject: Examined) -> Self:
        """By a subject in this process."""
        return cls(
            options=subject.options,
            device=subject.device,
            seed=subject.seed,
            dtype=subject.dtype,
            profile=subject.profile,
            timeout=subject.timeout,
            lengths=subject.lengths,
        )

    def of(self, point: Point) -> str:
        """The line that measures one point."""
        return reproduce(
            "sweep",
            ("--seq", str(point.length), *_without("--dtype", self.options, point.dtype != self.dtype)),
            dtype=point.dtype if point.dtype != self.dtype else None,
            values=point.values if point.values != "normal" else None,
            **self._conditions(),
        )

    def check(self, code: str) -> str:
        """The line that runs one check."""
        if self.lengths:
            words = ("--seq", ",".join(map(str, self.lengths)), *self.options)
            return reproduce("anomaly", words, **self._conditions())
        patience = {"profile": self.profile, "compile_timeout": self.compile_timeout}
        return reproduce("run", ("--select", code, *self.options), **patience, **self._conditions())

    def throughput(self, length: int, **options: Any) -> str:
        """The line that times one length."""
        return reproduce("throughput", ("--seq", str(length), *self.options), **options, **self._conditions())

    def _conditions(self) -> dict[str, Any]:
        return {"device": self.device, "timeout": self.timeout, "seed": self.seed}


def command_for(subject: Examined, code: str) -> str:
    """The line to paste that runs one check on this subject again."""
    return CommandLine.on(subject).check(code)


again = command_for  # its former name, which checks of users import


def _named(examination_request: ExaminationRequest) -> tuple[str, ...]:
    """The words that name the subject of an assignment."""
    asked = {
        "--subject": examination_request.spec,
        "--config": examination_request.config,
        "--input": examination_request.input,
        "--width": examination_request.width,
        "--like": examination_request.like,
        "--spec": ",".join(examination_request.declared) or None,
        "--train": examination_request.train,
        "--size": examination_request.size,
        "--reference": examination_request.reference,
        "--inputs": examination_request.inputs,
        "--dtype": examination_request.dtype,
    }
    return tuple(word for option, value in asked.items() if value is not None for word in (option, str(value)))


def _without(option: str, words: Sequence[str], is_replaced: bool) -> Iterable[str]:
    """The words without an option and its value, where another value replaces it."""
    for index, word in enumerate(words):
        if not is_replaced or option not in (word, words[index - 1] if index else ""):
            yield word


def _option(command: str, name: str, value: Any) -> list[str]:
    if value is None or value is False or value == _USUAL.get(name):
        return []
    if name == "timeout" and (value == SECONDS.get(command) or not math.isfinite(value)):
        return []
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (option, _word(each))]


def _word(value: Any) -> str:
    """The value as a person writes it, where reading that gives the same number."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
