"""How fast a subject is at one length, forward, in training and in decoding, and who takes the time."""

import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.cost.alive import peak_memory
from nsa_doctor.probes.cost.dense_baseline import dense_twin
from nsa_doctor.probes.cost.timing import Stopwatch, sampled
from nsa_doctor.probes.cost.work import count_work
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_DECODED = 8
_SAMPLED_SECONDS = 0.5
_BRANCHES = ("compress", "score", "select", "slide", "gate")


def throughput(subject: Subject, length: int, repeats: int) -> dict[str, Any]:
    """Seconds of each of `repeats` passes, of dense attention as wide beside them, and counts of one pass.

    Times are of the wall clock: that is what a run will see. One pass before them loads and builds.
    """
    found: dict[str, Any] = {"length": length}
    modes: dict[str, Mode] = {"forward": "no_grad", "train": "train"}
    for name, mode in modes.items():
        if mode in subject.modes:
            found[name], found[f"dense_{name}"] = _side_by_side(subject, mode, length, repeats)
    if subject.prefill is not None and subject.step is not None:
        found["decode"] = _decode_seconds(subject, length)
    mode = "train" if "train" in subject.modes else subject.modes[0]
    work = count_work(subject, length, mode)
    return {
        **found,
        "peak_bytes": peak_memory(subject, length, mode).bytes,
        "operations": work.num_operations,
        "waits": work.num_waits,
        "mode": mode,
    }


def time_shares(subject: Subject, length: int) -> dict[str, float]:
    """The share of a training pass spent in each branch, or where there are none in each module, by sampling."""
    watch = Stopwatch(subject, "train" if "train" in subject.modes else subject.modes[0])
    places = Places(FrameFilter(subject.packages))
    places.know(watch.module)
    watch.seconds(length)
    seen: Counter[str] = Counter()
    end = time.monotonic() + _SAMPLED_SECONDS
    while time.monotonic() < end:
        with places.watching(), sampled(lambda frame: _part(frame, places)) as samples:
            watch.seconds(length)
        seen.update(samples)
    return {name: number / seen.total() for name, number in seen.most_common()}


def _part(frame: FrameType, places: Places) -> str | None:
    """The branch whose folder of operators is running, else the innermost module."""
    outer: FrameType | None = frame
    while outer is not None:
        folders = outer.f_code.co_filename.split("/")[-3:-1]
        if folders[:1] == ["ops"] and folders[1] in _BRANCHES:
            return folders[1]
        outer = outer.f_back
    place = places.of_watched_frame(frame)
    return None if place is None else place.module or place.module_class or Path(place.file).stem


def _side_by_side(subject: Subject, mode: Mode, length: int, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of the subject's passes and of dense attention's, taken in turns, so that other load meets both."""
    watches = [Stopwatch(examined, mode, is_wall=True) for examined in (subject, dense_twin(subject))]
    for watch in watches:
        watch.seconds(length)
    rounds = [[watch.seconds(length)[0] for watch in watches] for _ in range(repeats)]
    return [own for own, _ in rounds], [plain for _, plain in rounds]


def _decode_seconds(subject: Subject, length: int) -> list[float]:
    """Seconds per token after a prompt of that length."""
    prefill, step = subject.prefill, subject.step
    assert prefill is not None
    assert step is not None
    made = built(subject, mode="eval", is_randomised=False)
    x, token = made.input(length), made.input(1)
    module: nn.Module = made.module
    found = []
    with torch.no_grad():
        _, cache = ask("prefill", lambda: prefill(module, x), module)
        for _ in range(_DECODED + 1):
            start = time.perf_counter()
            held = cache
            _, cache = ask("step", lambda held=held: step(module, token, held), module)
            if subject.device == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
    return found[1:]
