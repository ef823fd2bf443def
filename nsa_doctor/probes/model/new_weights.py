"""A module whose weights change after its first calls, beside one that has the new weights from the first call on."""

from collections.abc import Callable
from dataclasses import replace

import torch

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import randomise
from nsa_doctor.probes.model.call_history import Call, CallHistory
from nsa_doctor.probes.model.call_schedule import evaluated, trained
from nsa_doctor.subject.contract import Subject

_ANOTHER_SEED = 31337


def step(used: CallHistory, new: CallHistory) -> None:
    """Move the parameters of both in place, as an optimizer does, in training mode."""
    for history in (used, new):
        if "train" in history.built.subject.modes:
            history.enter("train")
        randomise(history.built.module, history.built.subject.seed + _ANOTHER_SEED)


def load(used: CallHistory, new: CallHistory) -> None:
    """Load the changed parameters of the one into the other, one by one where a state of another size is refused."""
    randomise(new.built.module, new.built.subject.seed + _ANOTHER_SEED)
    state = new.built.module.state_dict()
    if isinstance(attempt(lambda: used.built.module.load_state_dict(state)), Caught):
        others = dict(new.built.module.named_parameters())
        with torch.no_grad():
            for name, own in used.built.module.named_parameters():
                if name in others and others[name].shape == own.shape:
                    own.copy_(others[name])


Change = Callable[[CallHistory, CallHistory], None]
CHANGES: dict[str, Change] = {"an optimizer step": step, "load_state_dict()": load}


def calls_of(subject: Subject) -> list[Call]:
    """One call in each mode that the subject has, the last in eval() without gradients."""
    calls = [trained(subject), replace(evaluated(subject), mode="eval"), evaluated(subject)]
    return [call for call in calls if call.mode in subject.modes]


def called_with_them(subject: Subject, dtype: str) -> CallHistory:
    """A module that had the new weights before all of its calls: what it gives, the calls do by themselves."""
    history = CallHistory(subject, dtype=dtype)
    randomise(history.built.module, subject.seed + _ANOTHER_SEED)
    history.make(calls_of(subject))
    return history


def called_before(subject: Subject, dtype: str, change: Change) -> tuple[CallHistory, CallHistory]:
    """A module that was called before its weights changed, and one that was not."""
    used, new = CallHistory(subject, dtype=dtype), CallHistory(subject, dtype=dtype)
    used.make(calls_of(subject))
    change(used, new)
    return used, new
