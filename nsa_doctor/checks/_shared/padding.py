"""What is wrong with the tokens of a row that is padded, and where."""

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.padded_rows import PaddedRow
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import WrongOutputError

_SECOND = slice(1, 2)  # of two rows


def fault_of(sp: BuiltModule, row: PaddedRow) -> tuple[str, Place] | None:
    """What is wrong with the row's own tokens, and where."""
    try:
        first, second = row.output(), row.output(padding=1)
    except SubjectFailedError as failure:
        return _trouble(sp, failure)
    bad = (~isfinite(first)).flatten(2).any(-1)
    if bool(bad.any()):
        return f"{int(bad.sum())} of {bad.numel()} of the row's own tokens are not finite", row.birth()
    base = baseline(sp, row.input)
    found = base.departure(second, _SECOND, row.own, expected=first)
    if found is not None and row.is_mask_lost():
        return f"padding is read, and the mask changes nothing: {found.text}", definition_place(sp.module)
    if found is not None:
        return f"padding is read: its content changes the row's own tokens: {found.text}", row.reading()
    found = None if row.is_left else base.departure(first, _SECOND, row.own, expected=row.alone())
    masked = found and base.departure(first, _SECOND, row.own, expected=row.alone(is_masked=True))
    if found is None or masked is None:
        return None if row.is_left else _fault_by_itself(sp, row)
    return f"a row's own tokens are other than those of the row alone: {found.text}", row.counting()


def _fault_by_itself(sp: BuiltModule, row: PaddedRow) -> tuple[str, Place] | None:
    """What is wrong where no row of the batch is as long as the batch is, which one of two was so far."""
    try:
        row.by_itself()
    except SubjectFailedError as failure:
        message, place = _trouble(sp, failure)
        return f"where every row of the batch is padded, {message}", place
    return None


def _trouble(sp: BuiltModule, failure: SubjectFailedError) -> tuple[str, Place]:
    trouble = trouble_of(failure, sp.subject.packages)
    is_returned = isinstance(failure.caught.error, WrongOutputError)
    return trouble.message if is_returned else f"the subject raises {trouble.message}", trouble.place
