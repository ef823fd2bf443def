"""Which settings a subject has, and what each does to it."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.trials import Trial, rebuilt, try_out, warm_up
from nsa_doctor.probes.hooks.environment_reads import environment_reads
from nsa_doctor.probes.hooks.lines_apart import where_calls_part
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.setting_texts import listed_words
from nsa_doctor.probes.model.settings import Setting, options_of, values_of, variables_named

_LENGTH = 17


def settings_of(sp: BuiltModule) -> list[Setting]:
    """Variables that its sources ask for or that are read while it is built or called, and options of its classes.

    Those come first that choose how something is computed.
    """
    read = {**variables_named(sp.subject.packages), **_read(sp)}
    variables = [
        Setting(name=name, value=value, place=place) for name, place in read.items() for value in values_of(name, place)
    ]
    found = [*variables, *options_of(sp.module, sp.subject.packages)]
    return sorted(found, key=lambda setting: not setting.says_how)


class SettingTrials:
    """Tries settings, each once, beside one trial with nothing set."""

    def __init__(self, sp: BuiltModule) -> None:
        self._sp = sp
        warm_up(sp)
        self._plain = try_out(sp, None)
        self._tried: dict[Setting, Trial | None] = {}

    @property
    def are_repeatable(self) -> bool:
        """Whether a second trial with nothing set gives the same."""
        return self._plain.is_same(try_out(self._sp, None))

    def fault(self, setting: Setting) -> str:
        """What is wrong under a setting, in words; empty where nothing is."""
        trial = self._trial(setting)
        if trial is None or self._plain.raised or trial.raised or trial.is_same(self._plain):
            return ""
        if setting.says_how and trial.parameters == self._plain.parameters:
            words = self._plain.changed(trial)
            if words:
                return f"{setting} chooses, by its name, how something is computed, and changes what is: {words}"
        return self._half_followed(setting, trial) if setting.owner is None else ""

    def listed_by(self, setting: Setting) -> Iterator[Setting]:
        """The variable with each of the words that it may hold, as an error says under another."""
        trial = self._trial(setting)
        for sentence in () if trial is None or setting.owner is not None else trial.raised.values():
            for word in listed_words(sentence) if setting.name in sentence else ():
                if (other := replace(setting, value=word)) not in self._tried:
                    yield other

    def is_frozen(self, setting: Setting) -> bool:
        """Whether a variable that is set behind the first call changes nothing, though it does when set before."""
        early = self._trial(setting)
        if setting.owner is not None or early is None or early.raised or early.is_same(self._plain):
            return False
        late = try_out(self._sp, setting, is_late=True)
        return not late.raised and late.is_same(self._plain)

    def place_of(self, setting: Setting) -> Place:
        """Where calls under the setting part from those without it, in training if not before; or where it is read."""
        found = setting.place
        for is_training in (False, True):
            ways = [lambda each=each, way=is_training: self._called(each, is_training=way) for each in (None, setting)]
            found = where_calls_part(self._sp.subject, setting.place, *ways)
            if found != setting.place:
                break
        return found

    def _called(self, setting: Setting | None, *, is_training: bool) -> None:
        with unobserved(), nullcontext() if setting is None else setting.applied(), torch.set_grad_enabled(is_training):
            sp = rebuilt(self._sp)
            sp.module.train(is_training)
            sp(sp.input(min(_LENGTH, sp.subject.max_length)))

    def is_idle(self, setting: Setting) -> bool:
        """Whether the setting changes nothing that can be seen."""
        trial = self._trial(setting)
        return trial is not None and trial.is_same(self._plain)

    def _half_followed(self, setting: Setting, early: Trial) -> str:
        """Whether a variable set after the subject is built is followed, and not as if it had been set before."""
        late = try_out(self._sp, setting, is_late=True)
        if late.raised or late.is_same(self._plain) or early.parameters != late.parameters:
            return ""
        words = early.changed(late)
        head = f"{setting} is read while the subject is built and again in its calls: set between the two, "
        return f"{head}{words} of what it is when set before" if words else ""

    def _trial(self, setting: Setting) -> Trial | None:
        if setting not in self._tried:
            try:
                self._tried[setting] = try_out(self._sp, setting)
            except NotComparableError:
                self._tried[setting] = None
        return self._tried[setting]


def _read(sp: BuiltModule) -> dict[str, Place]:
    subject = sp.subject
    with environment_reads(FrameFilter(subject.packages)) as found:
        again = built(subject, dtype=sp.dtype)
        with torch.no_grad():
            again(again.input(min(_LENGTH, subject.max_length)))
    return found
