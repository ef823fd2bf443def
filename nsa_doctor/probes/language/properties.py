"""The properties by name, and what one model says to one of them."""

import dis
import io
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cached_property, partial

import torch

from nsa_doctor.core.conformance import Cell
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.probes.language.causality import batch, causal
from nsa_doctor.probes.language.checkpointing import grad
from nsa_doctor.probes.language.feeding import chunk, decode
from nsa_doctor.probes.language.generation import generate
from nsa_doctor.probes.language.implementations import twins
from nsa_doctor.probes.language.packing import packed
from nsa_doctor.probes.language.padding import padding
from nsa_doctor.probes.language.trial import Property, Trial, largest_difference, rounding_of_logits
from nsa_doctor.subject.language_model import LanguageModel

PROPERTIES: Mapping[str, Property] = {
    "causal": causal,
    "batch": batch,
    "decode": decode,
    "chunk": chunk,
    "padding": padding,
    "packed": packed,
    "twins": twins,
    "grad": grad,
    "generate": generate,
}

_MAY_REFUSE = ("chunk", "padding", "packed", "twins", "grad")  # what a model need not offer


class Bench:
    """A model whose properties are measured; what rounding explains is measured once."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @cached_property
    def rounding(self) -> float:
        """How far rounding alone moves logits."""
        return rounding_of_logits(self.model)

    @cached_property
    def narrow(self) -> "Bench | None":
        """The same in float32; None where this is float32 already."""
        return None if self.model.narrow is None else Bench(self.model.narrow())

    def measured(self, name: str) -> Cell:
        """How one property fares; what is wrong in float64 alone, which few run in, holds."""
        cell = self._measured(name)
        if not cell.is_red or self.narrow is None:
            return cell
        narrow = self.narrow.measured(name)
        return narrow if narrow.is_red else replace(narrow, text=f"in float32; in float64 {cell.text}")

    def _measured(self, name: str) -> Cell:
        """The first trial that differs beyond rounding or raises, or the worst that holds."""
        worst = Cell(model=self.model.name, property_name=name, status="holds", dtype=self.model.dtype)
        trials = attempt(lambda: list(PROPERTIES[name](self.model)))
        if isinstance(trials, Caught):
            if isinstance(trials.error, NotApplicableError):
                return replace(worst, status="does not apply", text=str(trials.error))
            return replace(worst, status="raises", text=trials.sentence)
        for trial in trials:
            cell = self._tried(replace(worst, trials=worst.trials + 1), trial)
            if cell.status != "holds":
                return cell
            worst = replace(cell, error=max(cell.error, worst.error), bound=max(cell.bound, worst.bound))
        return worst

    def _tried(self, cell: Cell, trial: Trial) -> Cell:
        with torch.no_grad():
            pair = attempt(trial.pair)
        cell = replace(cell, script=script(self.model, trial))
        if isinstance(pair, Caught):
            if cell.property_name in _MAY_REFUSE and _is_refusal(pair.error):
                return replace(cell, status="refuses", text=f"{trial.what}: {pair.sentence}")
            return _confirmed(replace(cell, status="raises", text=f"{trial.what}: {pair.sentence}"))
        bound = trial.rounding() if trial.rounding is not None else self.rounding
        error = largest_difference(pair)
        cell = replace(cell, error=error, bound=bound)
        if error <= bound:
            return replace(cell, script="")
        text = f"{trial.what} differ by {error:.2g}, where rounding explains {bound:.2g}"
        return _confirmed(replace(cell, status="differs", text=text))


def script(model: LanguageModel, trial: Trial) -> str:
    """Plain Python that shows one trial without us; it prints the largest difference."""
    shown = ("torch.set_grad_enabled(False)", *trial.lines)
    last = "print('largest difference:', float((got - expected).abs().max()))"
    return "\n".join((*model.lines, "", *shown, last, ""))


def _is_refusal(error: BaseException) -> bool:
    """Whether code raises on purpose: it says that it does not do this."""
    traceback = error.__traceback__
    if traceback is None or not isinstance(error, (ValueError, NotImplementedError, ImportError, AssertionError)):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return dis.opname[code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"


def _confirmed(cell: Cell) -> Cell:
    """The cell, once its script has shown the same; `unexplained` where it has not."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        ended = attempt(partial(exec, cell.script, {"__name__": "standalone"}))
    torch.set_grad_enabled(True)
    if cell.status == "raises":
        return cell if isinstance(ended, Caught) else _unexplained(cell, "plain torch raises nothing")
    if isinstance(ended, Caught):
        return _unexplained(cell, f"plain torch raises {ended.sentence}")
    shown = float(printed.getvalue().rpartition(":")[2])
    return cell if not shown <= cell.bound else _unexplained(cell, f"plain torch shows {shown:.2g}")


def _unexplained(cell: Cell, why: str) -> Cell:
    return replace(cell, status="unexplained", text=f"{cell.text}; {why}")
