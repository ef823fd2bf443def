"""The same calls on the same weights in an interpreter started for them, with its own hash seed and number."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core import handed_over
from nsa_doctor.core.endings import end_of
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import PACKAGE_ROOT
from nsa_doctor.core.replaced_sources import hand_over
from nsa_doctor.probes.hooks.line_recorder import last_line, record_lines
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.fork import CopyDiedError, in_fork
from nsa_doctor.probes.model.state import can_be_forked, cast
from nsa_doctor.subject.contract import Subject

_MAIN = "nsa_doctor.worker.second_main"
_REQUEST = "request.json"
_STATE, _BEGUN, _ANSWER, _AFTER_HALF, _LINES = "state.pt", "begun", "answer.pt", "after_half.pt", "lines"
_LOADING, _CALLING = "loading", "calling"
_SMALL = 1 << 26  # bytes of parameters, of which several times as many are no matter of memory
_BUILDS, _HALF = 3, "bfloat16"
_BEHIND_HALF = f", from a module that is built there behind one called in {_HALF}"
FIRST_OF_ALL = ", from the module that is built there first"
_OPTIONS = {"--subject": "spec", "--config": "config", "--input": "input", "--width": "width", "--dtype": "dtype"}


class EndedElsewhereError(NotComparableError):
    """The calls did not return there, twice: they ended the process, or did not in time; `place` is its last line."""

    def __init__(self, sentence: str, place: Place, *, is_hang: bool) -> None:
        super().__init__(sentence)
        self.sentence, self.place, self.is_hang = sentence, place, is_hang


def can_be_named(subject: Subject) -> bool:
    """Whether another interpreter can load it by the words that name it on the command line."""
    words, is_built_in = subject.options, bool(subject.configuration)
    if handed_over.NAME in words:
        return False
    return (is_built_in or bool(words)) and len(words) % 2 == 0 and set(words[::2]) <= set(_OPTIONS)


class SecondInterpreter:
    """Makes calls of a subject, on weights and buffers of this `state`, in interpreters of another hash seed."""

    def __init__(self, history: CallHistory, state: Mapping[str, Tensor], hash_seed: int, seconds: float) -> None:
        self.state = state
        self._module, self._hash_seed, self._seconds = history.built.module, hash_seed, seconds
        subject = history.built.subject
        words = dict(zip(subject.options[::2], subject.options[1::2], strict=True))
        self._request = {
            "name": subject.name,
            "names": {_OPTIONS[option]: value for option, value in words.items()},
            "path": sys.path,
            "threads": torch.get_num_threads(),
            "seed": subject.seed,
            "device": subject.device,
            "seconds": seconds // 2,
            "dtype": history.built.dtype,
            "found_out": {"whole_multiples_of": subject.whole_multiples_of, "answer": subject.answer},
        }

    def outcomes(self, calls: Sequence[Call]) -> list[tuple[str, list[Outcome]]]:
        """What the calls give there, one after another, of each module built; with words for which, none for the first.

        Raises EndedElsewhereError when the calls do not return, and NotComparableError when nothing could be called.
        """
        answer = self._answer(calls, {})
        return [
            (which, [_outcome(*each, self._module) for each in zip(calls, of_one, strict=True)])
            for which, of_one in answer["outcomes"]
        ]

    def departure(self, calls: Sequence[Call], which: str, expected: Mapping[str, Any]) -> dict[str, Any]:
        """What the one that looks says of the last of these calls on that module, given what is expected of it."""
        found: dict[str, Any] = self._answer(calls, {"which": which, "expected": expected})["departure"]
        return found

    def _answer(self, calls: Sequence[Call], look: Mapping[str, Any]) -> dict[str, Any]:
        request = {**self._request, "calls": [asdict(call) for call in calls], "look": look}
        with TemporaryDirectory() as folder:
            torch.save(dict(self.state), Path(folder) / _STATE)
            hand_over(folder)
            answer = _asked(folder, request, self._hash_seed, self._seconds)
            if isinstance(answer, Caught):  # once more, slowly, to see where
                if _may_lack_memory(answer, self._module):
                    raise NotComparableError(f"a second interpreter {_ending(answer)}")
                first, recorded = answer, {**request, "are_lines_recorded": True}
                answer = _asked(folder, recorded, self._hash_seed, self._seconds // 3)
                if isinstance(answer, Caught):
                    raise EndedElsewhereError(_ending(first), last_line(Path(folder) / _LINES), is_hang=_is_hang(first))
        if "raised" in answer:
            raise NotComparableError(f"a second interpreter could not load the subject: {answer['raised']}")
        return answer


def _asked(folder: str, request: dict[str, Any], hash_seed: int, seconds: float) -> dict[str, Any] | Caught:
    """The answer of an interpreter, or how it ended after calls had begun."""
    begun, root = Path(folder) / _BEGUN, str(PACKAGE_ROOT.parent)
    begun.unlink(missing_ok=True)
    program = f"import sys; sys.path.insert(0, {root!r}); from {_MAIN} import main; main()"
    command = ["env", f"PYTHONHASHSEED={hash_seed}", sys.executable, "-P", "-c", program, folder]
    (Path(folder) / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
    nowhere = subprocess.DEVNULL
    ended = attempt(
        lambda: run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, timeout=seconds, check=True)  # noqa: S603 (our own interpreter)
    )
    answer = attempt(lambda: torch.load(Path(folder) / _ANSWER, weights_only=True))
    if not isinstance(answer, Caught):
        return answer
    stage = begun.read_text(encoding="utf-8") if begun.exists() else ""
    is_import_slow = stage != _CALLING and isinstance(ended, Caught) and _is_hang(ended)
    if isinstance(ended, Caught) and stage and not is_import_slow:
        return ended
    why = ended.sentence if isinstance(ended, Caught) else answer.sentence
    raise NotComparableError(f"a second interpreter gave no answer ({why.partition('[')[0].strip()})")


def _is_hang(ended: Caught) -> bool:
    return isinstance(ended.error, subprocess.TimeoutExpired)


def _may_lack_memory(ended: Caught, module: nn.Module) -> bool:
    """Whether the system may have ended it for its memory, as there are several modules there; not of a small one."""
    is_killed = getattr(ended.error, "returncode", 0) == -signal.SIGKILL
    return is_killed and sum(each.nbytes for each in state_of(module).values()) > _SMALL


def _ending(ended: Caught) -> str:
    """What the process did."""
    match ended.error:
        case subprocess.CalledProcessError(returncode=code):
            return end_of(code)
        case subprocess.TimeoutExpired(timeout=seconds):
            return f"gave no answer within {seconds:g} s"
    return f"gave no answer ({ended.sentence})"


def begin(request: dict[str, Any], packages: tuple[str, ...], folder: str) -> Callable[[nn.Module], None]:
    """There: write down that the subject is loaded from now on, and its lines if that is wanted.

    Returns what is to hear of each module before its calls.
    """
    begun = Path(folder) / _BEGUN
    begun.write_text(_LOADING, encoding="utf-8")
    know = record_lines(Path(folder) / _LINES, packages) if request.get("are_lines_recorded") else None

    def made(module: nn.Module) -> None:
        begun.write_text(_CALLING, encoding="utf-8")
        if know is not None:
            know(module)

    return made


@dataclass(frozen=True)
class There:
    """What stands ready for the calls: the module that was called there before any other, if there is one still.

    It was called as it is built; `dtype` is another that the user asks for. `made` hears of each module before its
    calls, and `look` says how a call departs from one here.
    """

    first: nn.Module | None
    dtype: str | None
    made: Callable[[nn.Module], None]
    look: Callable[[CallHistory, Call, Mapping[str, Any]], dict[str, Any]]


def answer_request(subject: Subject, request: dict[str, Any], folder: str, there: There) -> None:
    """There: build the subject several times, give each the weights, make the calls, and write down what came of them.

    A process that examines has built and called modules before; what is wrong with the first or the second one of a
    process, or with one behind another in half precision, shows in a new one alone. The first stays in its own dtype:
    what it keeps was made in it.
    """
    calls = [Call(**call) for call in request["calls"]]
    state = torch.load(Path(folder) / _STATE, weights_only=True)
    histories: list[CallHistory] = []  # each module stays while the next is built
    departure: dict[str, Any] = {}

    def outcomes(which: str) -> list[dict[str, Any]]:
        if which == FIRST_OF_ALL and there.first is not None:
            first = cast(there.first, getattr(torch, there.dtype) if there.dtype else None)
            history = CallHistory(replace(subject, build=lambda _seed: first))
        else:
            history = CallHistory(subject, dtype=request["dtype"], mode="eval")
        histories.append(history)
        there.made(history.built.module)
        give_state(history.built.module, state)
        if request["look"].get("which") != which:
            return [_plain(history.step(call)) for call in calls]
        history.make(calls[:-1])
        departure.update(there.look(history, calls[-1], request["look"]["expected"]))
        return []

    def after_half() -> dict[str, Any]:
        CallHistory(subject, dtype=_HALF, mode="eval").make(calls)
        torch.save(outcomes(_BEHIND_HALF), Path(folder) / _AFTER_HALF)
        return departure

    if request["device"] == "cpu" and can_be_forked():  # a copy, which is new as well
        with suppress(CopyDiedError):
            departure.update(in_fork(after_half, request["seconds"]) or {})
    words = [f", from module {index + 1} that is built there" if index else "" for index in range(_BUILDS)]
    found = [(which, outcomes(which)) for which in words]
    behind = attempt(lambda: torch.load(Path(folder) / _AFTER_HALF, weights_only=True))
    if not isinstance(behind, Caught):
        found.append((_BEHIND_HALF, behind))
    if there.first is not None:
        found.append((FIRST_OF_ALL, outcomes(FIRST_OF_ALL)))
    torch.save({"outcomes": found, "departure": departure}, Path(folder) / _ANSWER)


def write_failure(sentence: str, folder: str) -> None:
    """There: say why nothing could be called."""
    torch.save({"raised": sentence}, Path(folder) / _ANSWER)


def give_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write those values by name into its parameters and buffers of equal shape, rounded to their dtype."""
    with torch.no_grad():
        for name, value in state_of(module).items():
            if name in state and state[name].shape == value.shape:
                value.copy_(state[name])


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those that are not saved too."""
    return {name: each.detach() for name, each in (*module.named_parameters(), *module.named_buffers())}


def _plain(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {}
    if outcome.failure is not None:
        return {"raised": outcome.failure.caught.sentence}
    return {"output": outcome.output, "gradients": dict(outcome.gradients)}


def _outcome(call: Call, facts: dict[str, Any], module: nn.Module) -> Outcome:
    return Outcome(
        call=call,
        module=module,
        output=facts.get("output"),
        gradients=facts.get("gradients", {}),
        raised=facts.get("raised", ""),
    )
