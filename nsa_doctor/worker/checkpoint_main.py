"""Reads a checkpoint in the process that was made for it: what is in it, or the fault that keeps it from being read."""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from nsa_doctor.artifacts.checkpoint import gate_names as names
from nsa_doctor.artifacts.checkpoint.content_hash import digest
from nsa_doctor.artifacts.checkpoint.contents import Contents, Stored, Tensor
from nsa_doctor.artifacts.checkpoint.fault import FaultError, quoted, shortened
from nsa_doctor.artifacts.checkpoint.gate_figures import read_gate
from nsa_doctor.artifacts.checkpoint.gate_movement import movements
from nsa_doctor.artifacts.checkpoint.gate_names import FoundGate
from nsa_doctor.artifacts.checkpoint.limits import MOST_MEMORY, Deadline, peak_bytes
from nsa_doctor.artifacts.checkpoint.open_checkpoint import open_checkpoint
from nsa_doctor.artifacts.checkpoint.record import NOT_KNOWN, Activation, Drift, GateRecord, Reading
from nsa_doctor.artifacts.checkpoint.scan import scan
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.text import short_bytes

MOST_GATES = 4096
_SHARE_OF_TIME = 0.8  # what is left is for the answer


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """What was `read`, or how the doctor's own code `broke`."""
    answer = attempt(lambda: _answer(request))
    return _caught(answer, request) if isinstance(answer, Caught) else answer


def _caught(caught: Caught, request: dict[str, Any]) -> dict[str, Any]:
    """A fault as what was read; anything else is the doctor's own."""
    path = request["path"]
    if isinstance(caught.error, FaultError):
        fault = caught.error
    elif isinstance(caught.error, MemoryError):
        fault = FaultError(
            "limit",
            f"{quoted(path)} takes more than {short_bytes(MOST_MEMORY)} of memory to read, which it does not get",
        )
    else:
        return {"broke": caught.sentence, "traceback": caught.traceback}
    return {"read": Reading(path=path, fault=fault.kind, sentence=fault.sentence).to_json()}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    start = time.monotonic()
    deadline = Deadline(request["seconds"] * _SHARE_OF_TIME)
    with ExitStack() as stack:
        contents = open_checkpoint(request["path"], stack, deadline)
        _open_opaque(contents, deadline)
        found = find(contents.tensors, request)
        reading = _read(contents, found, request, deadline)
        if request["since"] is not None:
            drifts = _drifts(contents, found, request, stack, deadline)
            gates = zip(reading.gates, found, strict=True)
            reading = replace(reading, gates=tuple(replace(each, drift=drifts.get(by.module)) for each, by in gates))
    seconds = time.monotonic() - start
    return {"read": replace(reading, seconds=seconds, peak_bytes=peak_bytes()).to_json()}


def _open_opaque(contents: Contents, deadline: Deadline) -> None:
    """Look into what holds no tensor of its own: code may hide there, and tensors too."""
    for name, open_part in contents.opaque.items():
        deadline.check(f"reading {contents.kind}")
        part = open_part()
        for tensor in part.tensors:
            if isinstance(tensor, Stored):
                contents.tensors.append(replace(tensor, name=f"{name}.{tensor.name}" if tensor.name else name))
        contents.summed += part.summed
        contents.settings |= {key: value for key, value in part.settings.items() if key not in contents.settings}
        contents.notes += [note for note in part.notes if note not in contents.notes]


def _read(contents: Contents, found: list[FoundGate], request: dict[str, Any], deadline: Deadline) -> Reading:
    kind, temperature, is_configured = _assumed(contents, request)
    layers = names.unique_layers([gate.module for gate in found])
    gates = []
    for gate in found:
        layer = shortened(layers[gate.module])
        if deadline.is_over:
            module = shortened(gate.module)
            gates.append(
                GateRecord(layer=layer, module=module, form=NOT_KNOWN, weight=None, unprobed="there was no time")
            )
        else:
            read = read_gate(gate, layer, request["num_branches"], kind, temperature, request["seed"])
            gates.append(replace(read, form=f"{read.form}, as configured") if is_configured and read.probe else read)
    seen = scan(contents, deadline, {tensor.name for gate in found for tensor in gate.tensors})
    notes = [*contents.notes, *seen.notes(), *_notes(gates)]
    return Reading(
        path=request["path"],
        kind=contents.kind,
        num_bytes=contents.num_bytes,
        sha256=digest(contents.files, deadline),
        num_tensors=len(contents.tensors),
        gates=tuple(gates),
        shapes={tensor.name: tensor.shape for tensor in contents.tensors} if request["wants_shapes"] else {},
        not_finite=tuple(seen.not_finite),
        num_not_finite=seen.num_not_finite,
        unseen=seen.unseen(deadline),
        similar=() if gates else tuple(names.similar_names(contents.tensors)),
        notes=tuple(notes),
    )


def find(tensors: list[Tensor], request: dict[str, Any]) -> list[FoundGate]:
    """The gates asked for."""
    pattern, num_branches = request["pattern"], request["num_branches"]
    if pattern is None:
        found = names.find_gates(tensors, num_branches)
    else:
        found = names.match_gates(tensors, pattern, num_branches)
    if len(found) > MOST_GATES:
        raise FaultError("limit", f"{len(found):,} gates match, and at most {MOST_GATES:,} are read; narrow --pattern")
    return found


def _assumed(contents: Contents, request: dict[str, Any]) -> tuple[Activation | None, float, bool]:
    """How logits become weights and what divides them: as asked for, else as a configuration says, which is noted."""
    said, temperature = contents.settings.get("gate"), contents.settings.get("gate_temperature", 1.0)
    if request["activation"] is not None or said not in ("softmax", "sigmoid"):
        return request["activation"], 1.0, False
    kind: Activation = "softmax" if said == "softmax" else "sigmoid"
    is_number = isinstance(temperature, float) and 1e-6 < temperature < 1e6
    return kind, float(temperature) if is_number and kind == "softmax" else 1.0, True


def _notes(gates: list[GateRecord]) -> list[str]:
    """What is odd about gates and not wrong by itself."""
    blind = [gate for gate in gates if gate.is_blind and not gate.is_constant]
    notes = []
    if blind:
        notes.append(f"{_some(blind)} the same weights to every input so far: the layer before the bias gives zero")
    return notes


def _some(gates: list[GateRecord]) -> str:
    others = f" and {len(gates) - 1} more give" if len(gates) > 1 else " gives"
    return f"{quoted(gates[0].layer)}{others}"


def _drifts(
    contents: Contents, found: list[FoundGate], request: dict[str, Any], stack: ExitStack, deadline: Deadline
) -> dict[str, Drift]:
    """How far gates went since an earlier file."""
    earlier = open_checkpoint(request["since"], stack, deadline)
    before = {names.stripped(gate.module): gate for gate in find(earlier.tensors, request)}
    return movements(found, contents.tensors, before, earlier.tensors, request["since"], deadline)
