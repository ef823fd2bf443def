"""Modules whose first call takes long: what compiles then, and what merely says so."""

import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

DIM = 8
SECONDS = 4.0


class Layer(nn.Module):
    """Residual; `act` is called once, before the first pass."""

    def __init__(self, act):
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.act = act

    def forward(self, x):
        if self.act:
            act, self.act = self.act, None
            act()
        return x + self.mix(x)


def _run_a_program(name, code):
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/{name}"
        os.symlink(sys.executable, program)
        subprocess.run([program, "-S", "-c", code], check=True)


def _assemble():
    _run_a_program("ptxas", f"import time\nend = time.time() + {SECONDS}\nwhile time.time() < end: pass")


def _wait_for_an_assembler():
    _run_a_program("ptxas", "import time; time.sleep(600)")


def compile_kernel():
    while True:
        time.sleep(0.01)


def assembles():
    return Layer(_assemble)


def waits_for_an_idle_assembler():
    return Layer(_wait_for_an_assembler)


def calls_a_loop_compiling():
    return Layer(compile_kernel)


class Traced(nn.Module):
    """A pass that `torch.compile` makes a program of."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.traced = torch.compile(self._mixed)

    def _mixed(self, x):
        for step in range(20):
            x = torch.sin(self.mix(x)) * (step + 1) + x.cumsum(1)
        return x

    def forward(self, x):
        return self.traced(x)


def traces():
    return Traced()
