"""Checks as items of pytest: one subject, one child process in each worker, one item for each check."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pytest

from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.like import FUNCTION
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.text import escaped
from nsa_doctor.engine.conclusions import is_swept, swept_codes
from nsa_doctor.engine.run import RunRequest
from nsa_doctor.engine.session import CHECK_SECONDS, Session
from nsa_doctor.isolation.supervisor import Supervisor

if TYPE_CHECKING:
    from nsa_doctor.subject.contract import Subject

_TO_START = 200.0  # seconds for Python, torch, the subject, and a sweep's share
_BLOCKED = "means nothing while"
_HOW = ("profile", "device", "dtype", "seed", "timeout", "compile_timeout")
_UNLESS_GIVEN: Mapping[str, Any] = {"device": "cpu", "seed": 0, "timeout": 30.0}


class CheckFailed(Exception):  # noqa: N818 (pytest prints the name: a failed check is what it is)
    """A check that found something; the text is what the doctor says of it."""


class CheckUnknown(Exception):  # noqa: N818
    """A check that could not be answered, which is not a pass."""


@dataclass
class Examining:
    """The subject of this worker, loaded when the first item needs it."""

    request: RunRequest
    _session: Session | None = None
    _supervisor: Supervisor | None = None
    _unusable: str = ""
    _is_refused: bool = False
    title: str = field(default="")

    @classmethod
    def asked(cls, given: Mapping[str, Any]) -> Self:
        """From the keys of an nsa-doctor.toml, of which `policy` and `jobs` mean nothing here; raises OptionError."""
        subject = given.get("subject")
        whom = SubjectOptions(
            subject=None if subject == "nsa" else subject,
            input_kind=given.get("input"),
            **{name: given.get(name) for name in ("config", "width", "spec", "train", "size")},
        )
        examination_request = options.examined(
            whom,
            function=FunctionOptions(**{name: given.get(name) for name in ("like", "reference", "inputs")}),
            **{**_UNLESS_GIVEN, **{name: given[name] for name in _HOW if name in given}},
        )
        chosen = {name: given.get(name) for name in ("select", "ignore")}
        request = options.run_request(examination_request=examination_request, **chosen, jobs=1, fail_fast=False)
        name = examination_request.spec or f"nsa ({examination_request.config or 'default'})"
        return cls(request, title=f"{name}, {len(request.checks)} checks, profile {examination_request.profile}")

    @property
    def is_of_function(self) -> bool:
        """Whether the subject is a function of q, k and v."""
        return (self.request.examination_request.spec or "").startswith(FUNCTION)

    @property
    def seconds_for_an_item(self) -> float:
        """Its time-out: start and sweep are counted in, for whichever item comes first."""
        return (
            CHECK_SECONDS[self.request.examination_request.profile]
            + self.request.examination_request.timeout
            + _TO_START
        )

    def answer(self, entry: Entry) -> Result | str:
        """The check's result; a sentence when the subject cannot be examined at all."""
        session, supervisor = self._loaded()
        if self._unusable:
            return self._unusable
        code = entry.manual.code
        if code not in session.results and session.facts:
            if is_swept(entry):
                session.sweep(supervisor)
            else:
                _, observed = session.check(entry, supervisor).parted()
                if observed:  # an item has but its own result to show them in
                    own = session.results[code]
                    session.results[code] = replace(
                        own, verdict=Verdict.FAIL, findings=(*own.findings, *observed), reason=""
                    )
        result = session.results[code]
        if session.facts or result in session.obstacles:
            return result
        why = [finding.message for other in session.obstacles for finding in other.findings] or [result.reason]
        return f"the subject could not be loaded: {'; '.join(why)}"

    def refuse(self, why: str) -> NoReturn:
        """Fail, or skip where another item of this worker has failed for a subject that is none."""
        is_known, self._is_refused = self._is_refused, bool(self._unusable)
        if is_known:
            pytest.skip(why)
        raise CheckUnknown(why)

    def load_here(self) -> "Subject":
        """The subject in this process, unguarded; raises SubjectUnusableError, and what its factory raises."""
        from nsa_doctor.adapters.load import load_subject
        from nsa_doctor.probes.model.perform import Conditions
        from nsa_doctor.subject.request import SubjectRequest
        from nsa_doctor.worker.handlers import under

        asked = self.request.examination_request
        subject = load_subject(
            SubjectRequest(
                spec=asked.spec,
                config=asked.config,
                input=asked.input,  # type: ignore[arg-type]
                width=asked.width,
                declared=asked.declared,
                train=asked.train,
                size=asked.size,
                seed=asked.seed,
                device=asked.device,
                lengths=asked.lengths,
                explore=True,
            )
        )
        return under(subject, Conditions(device=asked.device, seed=asked.seed), asked.profile, asked.dtype)

    def close(self) -> None:
        """End the child process."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def _loaded(self) -> tuple[Session, Supervisor]:
        if self._session is None or self._supervisor is None:
            codes = frozenset(entry.manual.code for entry in self.request.checks)
            self._session = Session(self.request.examination_request, codes | swept_codes(), is_paced=False)
            self._supervisor = Supervisor(self.request.examination_request)
            try:
                self._session.load(self._supervisor)
            except UsageError as error:
                self._unusable = str(error)
        return self._session, self._supervisor


class CheckItem(pytest.Item):
    """One check on the subject."""

    entry: Entry
    examining: Examining

    def runtest(self) -> None:
        """Answer the check; raises what pytest shows for FAIL, TIMEOUT, CRASH and SKIP."""
        result = self.examining.answer(self.entry)
        if isinstance(result, str):
            self.examining.refuse(result)
        self.user_properties += [("nsa_doctor_verdict", result.verdict.value)]
        self.user_properties += [("nsa_doctor_fingerprint", finding.fingerprint) for finding in result.findings]
        self.user_properties += [("nsa_doctor_fingerprint", fingerprint) for fingerprint in result.further]
        if result.verdict in (Verdict.FAIL, Verdict.TIMEOUT):
            texts = [*map(_printed, result.findings), result.remark]
            raise CheckFailed("\n\n".join(filter(None, texts)) or result.reason)
        if result.verdict is Verdict.SKIP and (not result.is_required or result.reason.startswith(_BLOCKED)):
            pytest.skip(result.reason)
        if result.verdict is not Verdict.PASS:
            raise CheckUnknown(f"{result.verdict.value}: {result.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The doctor's words in place of a traceback through its own code."""
        manual = self.entry.manual
        if isinstance(excinfo.value, CheckFailed):
            return f"{excinfo.value}\n\n{manual.code} {manual.name}: {manual.detects}\nFix: {manual.fix}"
        if isinstance(excinfo.value, CheckUnknown):
            return f"not answered: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The check's file, and its name as a heading."""
        return self.entry.path, None, f"nsa-doctor {self.name}"


class _Subject(pytest.Collector):
    """The node that all items hang from; its name shows in their ids."""

    def collect(self) -> list[pytest.Item]:
        """Nothing by itself."""
        return []


def checked_items(session: pytest.Session, examining: Examining) -> Iterator[CheckItem]:
    """One item for each check, in the checks' order."""
    name = examining.request.examination_request.spec or examining.request.examination_request.config or "nsa"
    parent = _Subject.from_parent(session, name="nsa-doctor", nodeid=f"nsa-doctor[{escaped(name)}]")
    for entry in examining.request.checks:
        item = CheckItem.from_parent(parent, name=f"{entry.manual.code}-{entry.manual.name}")
        item.entry, item.examining = entry, examining
        yield item


def _printed(finding: Finding) -> str:
    """A finding in a few lines."""
    rows = [
        ("where", str(finding.where) if finding.where.module_text or finding.where.file else ""),
        ("control", finding.control),
        ("also", ", ".join(finding.also)),
        ("reproduce", finding.repro),
        ("fingerprint", finding.fingerprint),
    ]
    lines = [finding.message, *(f"  {label}: {text}" for label, text in rows if text)]
    return "\n".join(map(escaped, lines))
