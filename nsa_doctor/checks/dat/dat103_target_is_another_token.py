"""DAT103 target-is-another-token

Detects: targets that are not the token after their input: the input itself, the one after the next, another row's.
Matters: a target that the model can read gives a loss near nothing and no model; any other one teaches nonsense.
Fix: shift once, in the loader (targets = tokens[:, 1:]) or in the model, never in both and never in neither.

Example:
    # faulty
    inputs, targets = tokens, tokens  # and the model does not shift
    # correct
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nsa_doctor.artifacts.data.batch import Batch
from nsa_doctor.artifacts.data.reading import train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.feeds import feeding

_Shares = dict[int, float | None]
_ALIKE = 0.98
_SHIFTS = (0, 2, -1, 3, -2)


def run(subject: DataSubject) -> Iterator[Finding]:
    batches = [b for b in train_rows(subject).batches if b.targets is not None and b.targets.shape == b.inputs.shape]
    if not batches:
        raise NotApplicableError("the loader gives rows of tokens without targets")
    share = {shift: _share(batches, shift) for shift in (1, *_SHIFTS)}
    if share[1] is None:
        raise NotComparableError("no target is to be predicted")
    wanted = 0 if subject.targets == "same" else 1
    if subject.targets != "next" and not (share[wanted] or 0.0) >= _ALIKE and _is_hidden(batches):
        raise NotApplicableError("targets are tokens that the inputs hide; --targets next says that they should not be")
    if not (share[wanted] or 0.0) >= _ALIKE:
        yield from _findings(subject, batches, share, wanted)
    elif wanted and _goes_round(batches):
        message = "the last target of each row is the row's first token: tokens were rolled and not shifted"
        yield about(subject, message, shift=1)


def _findings(subject: DataSubject, batches: Sequence[Batch], share: _Shares, wanted: int) -> Iterator[Finding]:
    found = next((shift for shift in (1, *_SHIFTS) if (share[shift] or 0.0) >= _ALIKE), None)
    if found == 0 and subject.targets is None and batches[0].target_name.startswith("label"):
        raise NotComparableError(
            "labels are the input ids themselves: right for a model that shifts them itself, and a leak for any other; "
            "--targets same or next says which"
        )
    if found is None:
        message = f"{100 * (1 - (share[wanted] or 0.0)):.3g} % of the targets are not the token after their input"
    elif found == 0:
        message = "targets are their inputs: the model can read what it is to predict"
        message += "" if subject.targets else " (unless it shifts them itself, which --targets same would say)"
    else:
        message = f"targets are {found} tokens after their inputs and not {wanted}"
    yield about(subject, message, shift=found, share=share[wanted])


def _share(batches: Sequence[Batch], shift: int) -> float | None:
    """How many of the targets that count are the token `shift` after their input; None when there are none."""
    same = total = 0
    for batch in batches:
        assert batch.targets is not None
        columns = batch.inputs.shape[1]
        at = slice(max(0, -shift), columns - max(0, shift))
        counts = ~np.asarray(batch.ignored)[:, at]
        later = batch.inputs[:, max(0, shift) : columns + min(0, shift)]
        same += int(((batch.targets[:, at] == later) & counts).sum())
        total += int(counts.sum())
    return same / total if total else None


def _is_hidden(batches: Sequence[Batch]) -> bool:
    """Whether few tokens are to be predicted, most of which stand in the input as one same id that is no target."""
    counts = [~np.asarray(batch.ignored) for batch in batches]
    shown = np.concatenate([batch.inputs[at] for batch, at in zip(batches, counts, strict=True)])
    wanted = np.concatenate([np.asarray(batch.targets)[at] for batch, at in zip(batches, counts, strict=True)])
    ids, often = np.unique(shown, return_counts=True)
    is_sparse = 2 * len(shown) < sum(at.size for at in counts)
    return is_sparse and 2 * often.max() >= len(shown) and 10 * sum(wanted == ids[often.argmax()]) <= len(wanted)


def _goes_round(batches: Sequence[Batch]) -> bool:
    first = np.concatenate([batch.inputs[:, 0] for batch in batches])
    last = np.concatenate([batch.targets[:, -1] for batch in batches if batch.targets is not None])
    return len(np.unique(first)) > 3 and bool((first == last).all())


def planted(subject: DataSubject) -> DataSubject:
    def same(batch: Batch, index: int, opening: Opening) -> object:
        return replace(batch, targets=batch.inputs, target_name="targets", ignored=None).plain()

    return feeding(subject, same)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="data", profile="smoke", explained_by=("DAT101", "DAT102")
)
