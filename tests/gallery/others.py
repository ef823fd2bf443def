"""What others say of the gallery: one training step looked at by each of them, in a process of its own.

`python -m tests.gallery.others` runs what a team has already or can install: torch's anomaly mode and gradcheck, fifty
steps on one batch, torchtest, torcheck and TorchFix (`pip install --no-deps torchtest torcheck torchfix libcst`).
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.share import Share
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from tests.gallery.cases import FAMILIES, HEALTHY, Case, read_cases

ROWS, LENGTH, SHORT = 2, 64, 12
STEPS, FALLS_TO = 50, 0.95  # of the first loss
SECONDS = 60.0

Says = str | None
"""What is said of a subject; None where nothing is."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A module that takes x and gives logits or embeddings, an optimizer for it, and what it is to learn by heart."""

    subject: Subject
    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    targets: Tensor

    def loss(self, out: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return functional.mse_loss(out, targets)
        return functional.cross_entropy(out.flatten(0, -2).float(), targets.flatten())

    def step(self) -> Tensor:
        """One step of the subject's own loop where it has one."""
        if self.subject.train_step is not None:
            return self.subject.train_step(self.model, self.optimizer, self.x)
        self.optimizer.zero_grad()
        own = self.subject.loss
        loss = own(self.model, self.x) if own is not None else self.loss(self.as_module()(self.x), self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def as_module(self) -> nn.Module:
        """The module, called as the subject calls it, with a tensor as its answer."""
        return _Called(self.subject, self.model)


class _Called(nn.Module):
    def __init__(self, subject: Subject, model: nn.Module) -> None:
        super().__init__()
        self.subject, self.model = subject, model

    def forward(self, x: Tensor) -> Tensor:
        out: Any = self.subject.forward(self.model, x)
        return out if isinstance(out, Tensor) else out[0]


def batch_of(case: Case, length: int = LENGTH) -> Batch:
    """The same inputs and targets for everybody."""
    subject = adapt(SubjectRequest(spec=case.spec, explore=False), case.load().make)
    model = subject.build(0)
    torch.manual_seed(1)
    if subject.input == "tokens":
        x = torch.randint(subject.width, (ROWS, length))
        targets = x.roll(-1, 1)
    else:
        x = torch.randn(ROWS, length, subject.width)
        targets = x.roll(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return Batch(subject=subject, model=model, optimizer=optimizer, x=x, targets=targets)


def anomaly_mode(case: Case) -> Says:
    """A step under torch.autograd.detect_anomaly, which raises at NaN and at what backward finds overwritten."""
    batch = batch_of(case)
    with torch.autograd.detect_anomaly(check_nan=True):
        loss = batch.step()
    return None if loss.isfinite() else f"the loss is {loss.item()}"


def gradcheck(case: Case) -> Says:
    """torch.autograd.gradcheck in float64, fast mode, of every parameter, and of the input where it is embeddings."""
    batch = batch_of(case, SHORT)
    module = batch.as_module().double().eval()
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    x = batch.x.double().requires_grad_() if batch.x.is_floating_point() else batch.x

    def forward(*values: Tensor) -> Any:
        given = dict(zip(names, values, strict=False))
        return torch.func.functional_call(module, given, (values[-1] if x.requires_grad else x,))

    parameters = [dict(module.named_parameters())[name] for name in names]
    torch.autograd.gradcheck(forward, (*parameters, *([x] if x.requires_grad else [])), fast_mode=True)
    return None


def one_batch(case: Case) -> Says:
    """Fifty steps on one batch, whose loss has to fall by a twentieth."""
    batch = batch_of(case)
    losses = [float(batch.step()) for _ in range(STEPS)]
    return None if losses[-1] < FALLS_TO * losses[0] else f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}"


def torchtest(case: Case) -> Says:
    """torchtest's suite: every parameter changes, no NaN, no Inf."""
    package = importlib.import_module("torchtest.torchtest")
    batch = batch_of(case)
    wanted = {f"test_{name}": True for name in ("vars_change", "nan_vals", "inf_vals")}
    package.test_suite(batch.as_module(), batch.loss, batch.optimizer, [batch.x, batch.targets], **wanted)
    return None


def torcheck(case: Case) -> Says:
    """torcheck's checks of a step: every parameter changes, no NaN and no Inf in parameters and outputs."""
    package = importlib.import_module("torcheck")
    batch = batch_of(case)
    package.register(batch.optimizer)
    package.add_module(batch.model, changing=True, check_nan=True, check_inf=True)
    batch.step()
    return None


def torchfix(case: Case) -> Says:
    """TorchFix, the linter of PyTorch's authors, with every rule."""
    words = [sys.executable, "-m", "torchfix", "--select", "ALL", str(case.file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(case.file)) or case.file.name in line]
    return lines[0] if lines else None


OTHERS: dict[str, Callable[[Case], Says]] = {
    each.__name__: each for each in (anomaly_mode, gradcheck, one_batch, torchtest, torcheck, torchfix)
}
PACKAGES = ("torchtest", "torcheck", "torchfix")


def said_of(name: str, case: Case, seconds: float) -> Says:
    """What that one says of a case: its words, what is raised under it, or that it did not end."""
    forked = multiprocessing.get_context("fork")
    heard, tells = forked.Pipe(duplex=False)
    child = forked.Process(target=_say, args=(name, case, tells), daemon=True)
    child.start()
    tells.close()
    try:
        if not heard.poll(seconds):
            return f"no answer in {seconds:.0f} s"
        return heard.recv()
    except EOFError:
        return "the process died"
    finally:
        child.kill()
        child.join()


def _say(name: str, case: Case, tells: Connection) -> None:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        said = attempt(lambda: OTHERS[name](case))
        tells.send(said.sentence if isinstance(said, Caught) else said)  # whatever is raised is what was said


@cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gallery.others", description=__doc__)
    made.add_argument("--other", nargs="+", choices=OTHERS, default=tuple(OTHERS))
    made.add_argument("--family", nargs="+", choices=(*FAMILIES, HEALTHY), default=(*FAMILIES, HEALTHY))
    made.add_argument("--only", nargs="+", metavar="NAME", help="cases by name")
    made.add_argument("--jobs", type=int, default=2, help="cases looked at at a time")
    made.add_argument("--seconds", type=float, default=SECONDS, help="each may take, of a case")
    made.add_argument("--output", type=Path, help="write what was said of each case to this file as JSON")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Ask, print, write."""
    options = parser().parse_args(words)
    missing = [name for name in PACKAGES if name in options.other and importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}; pip install --no-deps {' '.join(missing)} libcst", file=sys.stderr)
        return 2
    cases = [case for case in read_cases(tuple(options.family)) if not options.only or case.name in options.only]
    asked = [(name, case) for case in cases for name in options.other]
    answers: dict[tuple[str, str], Says] = {}
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for (name, case), said in zip(
            asked, pool.map(lambda each: said_of(*each, options.seconds), asked), strict=True
        ):
            answers[name, case.spec] = said
            print(f"{case.name}: {name}: {said or 'nothing'}", file=sys.stderr, flush=True)
    for name in options.other:
        print(row(name, cases, answers))
    if options.output:
        written = {case.spec: {name: answers[name, case.spec] for name in options.other} for case in cases}
        options.output.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return 0


def _ask(seconds: float, asked: tuple[str, Case]) -> Says:
    return said_of(*asked, seconds)


def row(name: str, cases: Sequence[Case], answers: dict[tuple[str, str], Says]) -> str:
    """How many bugs it says anything of, and how many healthy files."""
    bugs = [answers[name, case.spec] is not None for case in cases if case.family != HEALTHY]
    healthy = [answers[name, case.spec] is not None for case in cases if case.family == HEALTHY]
    found = Share(sum(bugs), len(bugs))
    return f"{name:13s} {found} of the bugs; something said of {sum(healthy)} of {len(healthy)} healthy files"


if __name__ == "__main__":
    sys.exit(main())
