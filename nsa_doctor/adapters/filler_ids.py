"""Ids of tokens that stand for no word, by what a module declares: padding, and what a word is masked by."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from nsa_doctor.subject.contract import Subject

_NAMES = (
    *("padding_idx", "padding_id", "pad_idx", "pad_id", "pad_token", "pad_token_id", "pad_index", "padding_index"),
    *("mask_idx", "mask_id", "mask_token_id", "mask_index"),
)
_CONFIGURATIONS = ("config", "cfg", "args")


def with_filler_ids(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the ids of which no sequence consists; as it is where it takes no tokens, or has no others."""
    if subject.input != "tokens":
        return subject
    found = {each for each in _declared(module) if 0 <= each < subject.width}
    return replace(subject, filler_ids=tuple(sorted(found))) if len(found) < subject.width else subject


def _declared(module: nn.Module) -> Iterator[int]:
    for part in module.modules():
        for holder in (part, *(getattr(part, name, None) for name in _CONFIGURATIONS)):
            values: dict[str, Any] = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
            yield from (value for name in _NAMES if type(value := values.get(name)) is int)
