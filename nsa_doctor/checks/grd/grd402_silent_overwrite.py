"""GRD402 silent-overwrite

Detects: a write that autograd does not see and that changes the gradient: through `.data`, numpy, a custom operation
    that does not declare what it writes, memory kept in `ctx`, or a gradient changed in place on its way back.
Matters: nothing raises, the loss looks right, and training follows a wrong gradient.
Fix: write into a copy; keep tensors with `save_for_backward`; declare `mutates_args`; return new gradients from hooks.

Example:
    # faulty
    weights = scores.softmax(-1)
    weights.data[hidden] = 0  # unseen by autograd, and softmax has saved the tensor
    # correct
    weights = scores.softmax(-1).masked_fill(hidden, 0)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.overwritten import MOST_FINDINGS, effect, first_passes, located
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.saved import Saved, SavedWatch
from nsa_doctor.probes.hooks.writers import GradientWatch
from nsa_doctor.probes.model.training import NoWatch, Trial
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for trial, watch, plain in first_passes(subject):
        silent = [saved for saved in watch.saved if saved.is_silent]
        found = list(_saved(subject, trial, plain, silent))
        if not found and not any(saved.is_refused for saved in watch.saved):  # unwatched, backward would raise
            found = list(_gradients(subject, trial, plain))
        if found:
            yield from found[:MOST_FINDINGS]
            return


def _saved(subject: Subject, trial: Trial, plain: Mapping[str, Tensor], silent: list[Saved]) -> Iterator[Finding]:
    """Lines whose writes, taken back before backward, change the gradient."""
    if not silent or not _changes(trial, plain, SavedWatch(frozenset(saved.index for saved in silent))):
        return
    for overwrite in located(subject, trial, silent):
        changes = _changes(trial, plain, SavedWatch(overwrite.indices))
        if changes:
            consequence = (
                f"nothing raises; {len(changes)} of {len(plain)} gradients differ from those of the saved values"
            )
            yield overwrite.finding(
                subject, "GRD402", trial, consequence, num_gradients=len(changes), change=max(changes)
            )


def _gradients(subject: Subject, trial: Trial, plain: Mapping[str, Tensor]) -> Iterator[Finding]:
    """A line that writes into a gradient which others have yet to use."""
    frames = FrameFilter(subject.packages)
    watch = GradientWatch(frames)
    trial.run(watch)
    if not watch.writes:
        return
    changes = _changes(trial, plain, GradientWatch(frames, are_private=True))
    if changes:
        write = watch.writes[0]
        yield Finding(
            message=f"{write.operation} writes into a gradient in backward at {trial.label}, and others use that "
            f"memory: {len(changes)} of {len(plain)} gradients are other than when each has memory of its own",
            where=write.place,
            evidence={"length": trial.length, "num_gradients": len(changes), "change": max(changes)},
            repro=command_for(subject, "GRD402"),
        )


def _changes(trial: Trial, plain: Mapping[str, Tensor], watch: SavedWatch | GradientWatch) -> list[float]:
    """By how much each gradient differs under the watch; two plain passes tell how much means nothing."""
    other = trial.run(watch)
    return effect(plain, other, trial.run(SavedWatch() if isinstance(watch, SavedWatch) else NoWatch()))


def planted(subject: Subject) -> Subject:
    def scaled_behind_its_back(module: nn.Module, x: Tensor) -> Tensor:
        weights = torch.sigmoid(subject.forward(module, x))
        weights.data.mul_(2)
        return weights

    return replace(subject, forward=scaled_behind_its_back)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", priority=220, commands=("anomaly",))
