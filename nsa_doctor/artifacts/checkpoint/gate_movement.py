"""How far gates went from one checkpoint to the next, and whether anything beside them did."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nsa_doctor.artifacts.checkpoint import gate_names as names
from nsa_doctor.artifacts.checkpoint.contents import Composed, Divided, Stored, Tensor
from nsa_doctor.artifacts.checkpoint.fault import FaultError
from nsa_doctor.artifacts.checkpoint.gate_figures import MOST_VALUES
from nsa_doctor.artifacts.checkpoint.gate_names import FoundGate
from nsa_doctor.artifacts.checkpoint.limits import Deadline
from nsa_doctor.artifacts.checkpoint.record import Drift
from nsa_doctor.artifacts.checkpoint.values import piece_of, read_values, stretches

_ENOUGH = 1  # one tensor that moved shows that its module was trained


def movements(
    gates: Sequence[FoundGate],
    tensors: Sequence[Tensor],
    earlier_gates: Mapping[str, FoundGate],
    earlier_tensors: Sequence[Tensor],
    since: str,
    deadline: Deadline,
) -> dict[str, Drift]:
    """The drift of each gate that both files have in the same shape, by its module."""
    beside = names.siblings(gates, tensors)
    before = {names.stripped(tensor.name): tensor for tensor in earlier_tensors}
    found: dict[str, Drift] = {}
    for gate in gates:
        other = earlier_gates.get(names.stripped(gate.module))
        deadline.check("comparing the gates")
        relative = None if other is None else _relative(gate, other)
        if relative is not None:
            others = 0 if relative else _num_moved(beside[gate.module], before, deadline)
            found[gate.module] = Drift(since=since, relative=relative, others=others)
    return found


def _relative(gate: FoundGate, earlier: FoundGate) -> float | None:
    """The norm of the difference of all parameters over that of the earlier ones."""
    now, then = gate.tensors, earlier.tensors
    if [tensor.shape for tensor in now] != [tensor.shape for tensor in then]:
        return None
    difference = size = 0.0
    for new, old in zip(now, then, strict=True):
        try:
            values, start = read_values(new, MOST_VALUES), read_values(old, MOST_VALUES)
        except FaultError as fault:
            if fault.kind not in ("limit", "unsupported", "incomplete"):
                raise
            return None
        if not (np.isfinite(values).all() and np.isfinite(start).all()):
            return None
        with np.errstate(over="ignore"):
            difference += float(np.square(values - start).sum())
            size += float(np.square(start).sum())
    if not np.isfinite(difference) or not np.isfinite(size):
        return None
    return float(np.sqrt(difference / size)) if size else float(np.sqrt(difference))


def _num_moved(tensors: Sequence[Tensor], before: Mapping[str, Tensor], deadline: Deadline) -> int:
    """How many of the tensors differ from their earlier selves; counted until it is enough."""
    count = 0
    for tensor in tensors:
        other = before.get(names.stripped(tensor.name))
        deadline.check("comparing what is beside the gates")
        if other is not None and other.shape == tensor.shape and other.dtype == tensor.dtype:
            count += _differ(tensor, other, deadline)
            if count >= _ENOUGH:
                break
    return count


def _differ(tensor: Tensor, other: Tensor, deadline: Deadline) -> bool:
    for new, old in zip(_stored(tensor), _stored(other), strict=False):
        for one, two in zip(stretches(new), stretches(old), strict=False):
            for chunk, earlier in zip(one.chunks(), two.chunks(), strict=False):
                deadline.check("comparing what is beside the gates")
                if chunk.shape != earlier.shape or chunk.tobytes() != earlier.tobytes():
                    return True
    return False


def _stored(tensor: Tensor) -> Iterator[Stored]:
    if not isinstance(tensor, Divided):
        yield from tensor.parts if isinstance(tensor, Composed) else (tensor,)
        return
    for piece in tensor.pieces:
        yield piece_of(tensor, piece.open().tensors, piece.shape)
