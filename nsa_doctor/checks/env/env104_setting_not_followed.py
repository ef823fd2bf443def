"""ENV104 setting-not-followed

Detects: an environment variable or an option that chooses, by its name, how something is computed and changes what is
computed; a variable that is read both while the subject is built and in its calls, and is followed in one of the two;
a switch that no text turns off.
Settings that change nothing at all are notes.
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.behaviour.setting_trials import SettingTrials, settings_of
from nsa_doctor.probes.behaviour.stuck_switches import OFF, stuck_switches
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.settings import Setting
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.subject.contract import Subject

_MOST = {"smoke": 4, "quick": 12, "full": 200}


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
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
    for setting in settings[: _MOST[subject.profile]]:
        words = trials.fault(setting)
        if words:
            yield _finding(subject, setting, words, trials.place_of(setting))
            return
        idle[setting.label] = idle.get(setting.label, True) and trials.is_idle(setting)
    names = [name for name, is_idle in idle.items() if is_idle]
    if names:
        yield Note(message=f"settings that change no output, gradient or operation here: {joined(names)}")


def _never_off(subject: Subject, name: str, place: Place) -> Finding:
    return Finding(
        message=f"{name} cannot be switched off: {place.function}() answers True without it and for {joined(OFF)}, for "
        "the truth of a text is whether it is empty",
        where=place,
        evidence={"setting": name, "value": OFF[0]},
        repro=command_for(subject, "ENV104"),
    )


def _finding(subject: Subject, setting: Setting, words: str, place: Place) -> Finding:
    read = setting.place
    known = "read" if setting.owner is None else "declared"
    is_elsewhere = read.file and (read.file, read.line) != (place.file, place.line)
    return Finding(
        message=f"{words}; it is {known} at {Path(read.file).name}:{read.line}" if is_elsewhere else words,
        where=place,
        evidence={"setting": setting.label, "value": str(setting.value)},
        repro=command_for(subject, "ENV104"),
    )


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
