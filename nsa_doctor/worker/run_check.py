"""Runs one check on one subject, and says how it ended."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from nsa_doctor.core.allowance import Allowance
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.facts import SWEPT
from nsa_doctor.core.finding import Finding, Note, Result, Verdict
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place, TroubleKind
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.hooks.phase import heard_by
from nsa_doctor.probes.model.loops import preserved_loop
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.observing import Observer
from nsa_doctor.probes.model.own_error import is_own_error
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.observed_findings import findings_of


def run_check(check: Check, subject: Subject, locating: Allowance | None = None) -> Result:
    """Findings make FAIL, a missing seam or nothing to compare with SKIP, the doctor's own exception CRASH.

    What it found before it gave up or raised stands. What its calls did on the way, whatever the check makes of it, are
    findings of the checks that answer such facts; they stand behind its own and do not make it FAIL. Their places may
    be looked for in the seconds of `locating`, and without a limit of all checks together where it is not given.
    """
    missing = [seam for seam in check.needs if not subject.offers(seam)]
    if missing:
        return replace(_skipped(check, offers_no(missing, subject.name)), is_required=False)
    if meant := [word for word in check.unless if word in subject.spec]:
        return replace(_skipped(check, f"{subject.name} is declared {meant[0]}"), is_required=False)
    start = time.perf_counter()
    observer, seen = Observer(subject), list[Finding | Note]()
    with preserved_state(), preserved_loop(subject.train_step), warnings.catch_warnings(), heard_by(observer):
        warnings.simplefilter("ignore")
        answer = attempt(lambda: seen.extend(check.run(observer.observed())))
    ended = _judged(seen, check)
    if isinstance(answer, Caught) and not ended.findings:
        ended = replace(_raised(answer, check, subject), notes=ended.notes)
    is_about_calls = any(fact in SWEPT for fact in check.answers)  # and judges each of them itself
    beside = () if is_about_calls else tuple(findings_of(observer, check, subject, locating or Allowance()))
    return replace(ended, findings=(*ended.findings, *beside), seconds=time.perf_counter() - start)


def _judged(answer: Sequence[Finding | Note], check: Check) -> Result:
    manual = check.manual
    found = [replace(item, code=item.code or manual.code) for item in answer if isinstance(item, Finding)]
    ended = Result(
        code=manual.code,
        name=manual.name,
        verdict=Verdict.FAIL if found else Verdict.PASS,
        notes=tuple(str(item) for item in answer if isinstance(item, Note)),
    )
    return ended.with_findings(found)


def _raised(caught: Caught, check: Check, subject: Subject) -> Result:
    """FAIL when the subject's own code raised, CRASH when the doctor's did, SKIP with nothing to compare."""
    error, manual = caught.error, check.manual
    if isinstance(error, NotComparableError):
        return _skipped(check, str(error))
    if isinstance(error, NotApplicableError):
        return replace(_skipped(check, str(error)), is_required=False)
    if isinstance(error, SubjectFailedError) and not is_own_error(error.caught.error):
        trouble = trouble_of(error, subject.packages)
        if trouble.kind == "out_of_memory":
            return _skipped(check, f"out of memory: {trouble.message}")
        if trouble.kind == "not_measured":
            return replace(_skipped(check, f"not measured: {trouble.message}"), is_required=False)
        message = f"the subject raises {trouble.message}" if trouble.kind == "raised" else trouble.message
        return _failed(check, subject, f"{message} in {trouble.phase}", trouble.place, trouble.kind)
    line = FrameFilter(subject.packages).of_traceback(error.__traceback__)
    if line is None or line.file == check.run.__code__.co_filename:
        return Result(code=manual.code, name=manual.name, verdict=Verdict.CRASH, reason=caught.sentence)
    place = Place(file=line.file, line=line.line, function=line.function)
    return _failed(check, subject, f"the subject raises {caught.sentence}", place)


def _failed(check: Check, subject: Subject, message: str, place: Place, kind: TroubleKind = "raised") -> Result:
    manual = check.manual
    evidence = {"kind": kind, **error_evidence(message)}
    repro = command_for(subject, manual.code)
    finding = Finding(code=manual.code, message=message, where=place, evidence=evidence, repro=repro)
    return Result(code=manual.code, name=manual.name, verdict=Verdict.FAIL, findings=(finding,))


def _skipped(check: Check, reason: str) -> Result:
    manual = check.manual
    return Result(code=manual.code, name=manual.name, verdict=Verdict.SKIP, reason=reason)
