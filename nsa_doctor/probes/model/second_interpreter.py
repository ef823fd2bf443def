"""The same calls on the same weights in an interpreter started for them, with its own hash seed and number."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core import handed_over
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.package import PACKAGE_ROOT
from nsa_doctor.core.replaced_sources import hand_over
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.fork import in_fork
from nsa_doctor.probes.model.state import can_be_forked
from nsa_doctor.subject.contract import Subject

_MAIN = "nsa_doctor.worker.second_main"
_STATE, _ANSWER, _AFTER_HALF = "state.pt", "answer.pt", "after_half.pt"
_BUILDS, _HALF = 3, "bfloat16"
_OPTIONS = {"--subject": "spec", "--config": "config", "--input": "input", "--width": "width", "--dtype": "dtype"}


def can_be_named(subject: Subject) -> bool:
    """Whether another interpreter can load it by the words that name it on the command line."""
    words, is_built_in = subject.options, bool(subject.configuration)
    if handed_over.NAME in words:
        return False
    return (is_built_in or bool(words)) and len(words) % 2 == 0 and set(words[::2]) <= set(_OPTIONS)


def outcomes_elsewhere(
    history: CallHistory, calls: Sequence[Call], hash_seed: int, seconds: float
) -> list[tuple[str, list[Outcome]]]:
    """What the calls give there, one after another, on the weights and buffers of this module: of each module built.

    With words for which module it is, none for the first. Raises NotComparableError when there is no answer in time.
    """
    subject = history.built.subject
    words = dict(zip(subject.options[::2], subject.options[1::2], strict=True))
    request = {
        "name": subject.name,
        "names": {_OPTIONS[option]: value for option, value in words.items()},
        "calls": [asdict(call) for call in calls],
        "path": sys.path,
        "threads": torch.get_num_threads(),
        "seed": subject.seed,
        "device": subject.device,
        "seconds": seconds // 2,
        "dtype": history.built.dtype,
    }
    with TemporaryDirectory() as folder:
        torch.save(_state(history.built.module), Path(folder) / _STATE)
        hand_over(folder)
        root = str(PACKAGE_ROOT.parent)
        program = f"import sys; sys.path.insert(0, {root!r}); from {_MAIN} import main; main()"
        command = ["env", f"PYTHONHASHSEED={hash_seed}", sys.executable, "-P", "-c", program]
        nowhere = subprocess.DEVNULL
        ended = attempt(
            lambda: subprocess.run(  # noqa: S603 (our own interpreter)
                [*command, folder, json.dumps(request)],
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                timeout=seconds,
                check=True,
            )
        )
        answer = attempt(lambda: torch.load(Path(folder) / _ANSWER, weights_only=True))
        if isinstance(answer, Caught):
            why = ended.sentence if isinstance(ended, Caught) else answer.sentence
            raise NotComparableError(f"a second interpreter gave no answer ({why.partition('[')[0].strip()})")
    if "raised" in answer:
        raise NotComparableError(f"a second interpreter could not load the subject: {answer['raised']}")
    module = history.built.module
    return [
        (which, [_outcome(*each, module) for each in zip(calls, of_one, strict=True)])
        for which, of_one in answer["outcomes"]
    ]


def answer_request(subject: Subject, request: dict[str, Any], folder: str) -> None:
    """There: build the subject, give it the weights, make the calls, and write down what came of them; all thrice.

    A process that examines has built and called modules before; what is wrong with the second one of a process, or with
    one behind another in half precision, shows in a new one alone.
    """
    calls = [Call(**call) for call in request["calls"]]
    state = torch.load(Path(folder) / _STATE, weights_only=True)
    histories: list[CallHistory] = []  # each module stays while the next is built

    def outcomes() -> list[dict[str, Any]]:
        histories.append(history := CallHistory(subject, dtype=request["dtype"], mode="eval"))
        with torch.no_grad():
            for name, value in _state(history.built.module).items():
                if name in state and state[name].shape == value.shape:
                    value.copy_(state[name])
        return [_plain(history.step(call)) for call in calls]

    def after_half() -> dict[str, Any]:
        CallHistory(subject, dtype=_HALF, mode="eval").make(calls)
        torch.save(outcomes(), Path(folder) / _AFTER_HALF)
        return {}

    if request["device"] == "cpu" and can_be_forked():  # a copy, which is new as well
        in_fork(after_half, request["seconds"])
    found = [
        (f", from module {index + 1} that is built there" if index else "", outcomes()) for index in range(_BUILDS)
    ]
    behind = attempt(lambda: torch.load(Path(folder) / _AFTER_HALF, weights_only=True))
    if not isinstance(behind, Caught):
        found.append((f", from a module that is built there behind one called in {_HALF}", behind))
    torch.save({"outcomes": found}, Path(folder) / _ANSWER)


def write_failure(sentence: str, folder: str) -> None:
    """There: say why nothing could be called."""
    torch.save({"raised": sentence}, Path(folder) / _ANSWER)


def _state(module: nn.Module) -> dict[str, Tensor]:
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
