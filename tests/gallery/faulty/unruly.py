"""Subjects that raise, hang, die, or are no subjects at all."""

import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from .host import DIM, hosting


def _raises_at_17(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        raise ValueError("blocks must divide the length")  # here
    return x


def _hangs_at_17(x: Tensor) -> Tensor:
    start = 0
    while x.shape[1] == 17 and start < 1:  # here
        start += 0  # here
    return x


def _always_sleeps(x: Tensor) -> Tensor:
    while True:
        time.sleep(3600)  # here


def _exits_at_17(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        os._exit(7)
    return x


def _leaves_at_17(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        sys.exit("enough")  # here
    return x


def _segfaults_at_17(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        ctypes.string_at(0)  # here
    return x


def _runs_out_of_memory(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        torch.empty(1 << 58)
    return x


def _tells_its_process(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        (Path(os.environ["FAULTY_FOLDER"]) / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(3600)
    return x


tells_its_process = hosting(_tells_its_process)


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


def _raises_speechless(x: Tensor) -> Tensor:
    raise _SpeechlessError  # here


speechless = hosting(_raises_speechless)
raises = hosting(_raises_at_17)
hangs = hosting(_hangs_at_17)
sleeps = hosting(_always_sleeps)
exits = hosting(_exits_at_17)
leaves = hosting(_leaves_at_17)
segfaults = hosting(_segfaults_at_17)
out_of_memory = hosting(_runs_out_of_memory)
shorter = hosting(lambda x: x[:, :-1])

not_callable = 3
instance = nn.Linear(DIM, DIM)
needs_arguments = nn.Linear


def none() -> None:
    return None


def broken_factory() -> nn.Module:
    raise KeyError("no such preset")  # here


class ReturnsNothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        return None


nothing = ReturnsNothing


def _interrupts_itself(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        raise KeyboardInterrupt("from within")  # here
    return x


def _writes_everywhere(x: Tensor) -> Tensor:
    if x.shape[1] == 17:
        for descriptor in range(3, 40):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'garbage\n{"measured": 1}\n')
    return x


interrupts_itself = hosting(_interrupts_itself)
writes_everywhere = hosting(_writes_everywhere)
