"""Lucid with its decoding, for `nsa-doctor run --subject lucid.adapter:make`."""

from __future__ import annotations

from nsa_doctor import Adapter

from . import factory


def make() -> Adapter:
    """The block, read at once, and by prefill and steps."""
    return Adapter(
        make=factory.make,
        call=lambda block, x: block(x),
        seams={
            "prefill": lambda block, x: block.prefill(x),
            "step": lambda block, x, cache: block.step(x, cache),
        },
    )
