"""What torchtitan prints on its console, line by line: steps, validation, its start, its end and what ended it.

All numbers of a step are of the whole run, whichever rank prints them, so that one rank's lines are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TEXT_SUFFIXES = (".log", ".txt", ".out")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"(?:\[rank\d{1,6}\]:\s?|\d{1,6}:\s)*")  # of torchrun, torch and srun
_LOGGED = re.compile(r"(?:\[titan\] )?(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - \S+ - [A-Z]+ - (?P<text>.*)")
_STEP = re.compile(r"(?P<validate>validate )?step: *(?P<step>\d{1,15})\b(?P<rest>.* loss: .*)")
_QUANTITY = re.compile(r"\b(loss|grad_norm|memory|tps|wps): *([-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf))", re.I)
_OF_NO_LOSS = re.compile(r"-\d")  # what pipeline stages before the last print
_COLUMNS = {"memory": "memory_max_reserved_gib", "wps": "tps"}
_STARTS = re.compile(r"Training starts at step (\d{1,15})")
_TOTAL = re.compile(r"total steps (\d{1,15})")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b.*")
_NOT_FINITE = re.compile(r"Loss is not finite \(\w+=(?P<loss>[-+\w.]+)\) at step (?P<step>\d{1,15})")


@dataclass
class Console:
    """Reads one log; `settings` is what the run says of itself."""

    settings: dict[str, float] = field(default_factory=dict)
    _num_columns: int = 0  # of the last step
    _rank: str | None = None
    _last: tuple[str, str] = ("", "")
    _start: str = ""  # its step, until a step is printed
    _has_begun: bool = False
    _is_in_traceback: bool = False
    _has_raised: bool = False

    def row(self, line: str) -> Mapping[str, Any]:
        """A step or an event as a row of a log; nothing for any other line."""
        plain = _COLOUR.sub("", line)
        rank = _RANK.match(plain)
        start = rank.end() if rank else 0
        logged = _LOGGED.match(plain, start)
        if logged is None:
            return self._of_traceback(plain[start:].rstrip())
        text = logged["text"]
        if (step := _STEP.match(text)) is not None:
            return self._of_step(step, plain[:start], logged["ts"])
        return self._of_event(text, logged["ts"])

    def row_of_ending(self, line: str) -> Mapping[str, Any]:
        """The step in a last line that lacks its line break; nothing where less is in it than in the step before."""
        row = replace(self).row(line)
        return row if len(row) >= self._num_columns > 0 else {}

    def _of_step(self, step: re.Match[str], rank: str, ts: str) -> Mapping[str, Any]:
        found = {name.lower(): value.replace(",", "") for name, value in _QUANTITY.findall(step["rest"])}
        if "loss" not in found or _OF_NO_LOSS.match(found["loss"]):
            return {}
        self._rank = rank if self._rank is None else self._rank
        if rank != self._rank:
            return {}
        if step["validate"]:
            return {"ts": ts, "step": step["step"], "eval_loss": found["loss"]}
        if self._last == (step["step"], found["loss"]):  # another rank's, where lines name none
            return {}
        self._start, self._last = "", (step["step"], found["loss"])
        self._has_begun, self._has_raised = True, False
        row = {"ts": ts, "step": step["step"]} | {_COLUMNS.get(name, name): value for name, value in found.items()}
        self._num_columns = len(row)
        return row

    def _of_event(self, text: str, ts: str) -> Mapping[str, Any]:
        if (total := _TOTAL.search(text)) is not None:
            self.settings["max_steps"] = float(total[1])
        if (starts := _STARTS.match(text)) is not None:
            before = int(starts[1]) - 1
            if self._start == starts[1]:  # another rank's
                return {}
            self._start, self._rank, self._last = starts[1], None, ("", "")
            self._has_begun, self._has_raised = True, False
            return {"ts": ts, "msg": f"resumed from step {before}" if before > 0 else "started"}
        return {"ts": ts, "msg": "finished"} if text.startswith("Training completed") else {}

    def _of_traceback(self, text: str) -> Mapping[str, Any]:
        """The exception that ends the first traceback: those after it are of processes that it took along."""
        if text.startswith("Traceback (most recent call last)"):
            self._is_in_traceback = self._has_begun
        if not self._is_in_traceback or _RAISED.fullmatch(text) is None:
            return {}
        self._is_in_traceback = False
        if self._has_raised:
            return {}
        self._has_raised = True
        if (found := _NOT_FINITE.search(text)) is not None:
            return {"step": found["step"], "loss": found["loss"], "msg": f"ended: stopped: {text.partition(': ')[2]}"}
        return {"msg": f"ended: {text}"}
