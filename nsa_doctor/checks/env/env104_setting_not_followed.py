"""ENV104 setting-not-followed

Detects: an environment variable or an option that chooses, by its name, how something is computed and changes what is
computed; a variable that is read both while the subject is built and in its calls, and is followed in one of the two;
one whose docstring says that it is read at every call, and that is read once; a switch that no text turns off.
Settings that change nothing at all are notes, and so are those that are off, whose paths no call takes.
Matters: who turns it to narrow a fault, to compare, or to be faster, gets another model, or the same path twice.
Fix: read a setting in one place, hand its value on, and hold both paths to each other in a test.

Example:
    # faulty
    window = self.window if os.environ.get("ATTN_FUSED", "1") == "1" else self.window - 1
    # correct
    attend = fused if os.environ.get("ATTN_FUSED", "1") == "1" else plain
    return attend(q, k, v, window=self.window)
"""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.checks._shared.settings_off import notes_of_settings_off
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.behaviour.setting_trials import SettingTrials, settings_of
from nsa_doctor.probes.behaviour.stuck_switches import OFF, stuck_switches
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.read_once import readers_that_keep
from nsa_doctor.probes.model.setting_texts import said_to_be_read_at_every_call
from nsa_doctor.probes.model.settings import Setting
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.subject.contract import Subject

_MOST = {"smoke": 4, "quick": 12, "full": 200}


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    yield from notes_of_settings_off(sp)
    if (stuck := next(stuck_switches(sp), None)) is not None:
        yield _never_off(subject, *stuck)
        return
    if not can_be_forked():
        raise NotApplicableError("settings are tried in copies of the process, which one with a GPU cannot have")
    settings = settings_of(sp)
    if not settings:
        raise NotApplicableError(f"no setting of {subject.name} is seen")
    trials = SettingTrials(sp)
    if not trials.are_repeatable:
        raise NotComparableError("the subject gives other results when it is built again with the same weights")
    idle: dict[str, bool] = {}
    waiting = deque(settings[: _MOST[subject.profile]])
    while waiting:
        setting = waiting.popleft()
        words = trials.fault(setting)
        waiting.extend(each for each in trials.listed_by(setting) if each not in waiting)
        if words:
            yield _changing(subject, setting, words, trials.place_of(setting))
            return
        said = said_to_be_read_at_every_call(setting.name, subject.packages) if setting.owner is None else None
        if said is not None and trials.is_frozen(setting):
            yield _frozen(subject, setting, said)
            return
        idle[setting.label] = idle.get(setting.label, True) and trials.is_idle(setting)
    if names := [name for name, is_idle in idle.items() if is_idle]:
        yield Note(message=f"settings that change no output, gradient or operation here: {joined(names)}")


def _finding(subject: Subject, setting: str, value: object, message: str, where: Place) -> Finding:
    evidence = {"setting": setting, "value": str(value)}
    return Finding(message=message, where=where, evidence=evidence, repro=command_for(subject, "ENV104"))


def _never_off(subject: Subject, name: str, place: Place) -> Finding:
    message = f"{name} cannot be switched off: {place.function}() answers True without it and for {joined(OFF)}, for "
    return _finding(subject, name, OFF[0], f"{message}the truth of a text is whether it is empty", place)


def _frozen(subject: Subject, setting: Setting, said: Place) -> Finding:
    keeping = next(readers_that_keep(subject.packages), None) if setting.place.function != "<module>" else None
    message = f"{setting} changes what is computed when it is set before the import, and nothing when it is set after "
    message += f"the first call: it is read once, and {Path(said.file).name}:{said.line} says at every call"
    return _finding(subject, setting.label, setting.value, message, keeping or setting.place)


def _changing(subject: Subject, setting: Setting, words: str, place: Place) -> Finding:
    read, known = setting.place, "read" if setting.owner is None else "declared"
    is_elsewhere = read.file and (read.file, read.line) != (place.file, place.line)
    message = f"{words}; it is {known} at {Path(read.file).name}:{read.line}" if is_elsewhere else words
    return _finding(subject, setting.label, setting.value, message, place)


def planted(subject: Subject) -> Subject:
    def scales_on_one_path(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output * 1.01 if os.environ.get("ATTN_USE_FUSED", "0") == "1" else output

    return replace(subject, forward=scales_on_one_path)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("FWD2", "FWD3", "GRD1"),
    priority=690,
)
