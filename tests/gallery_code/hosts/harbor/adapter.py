"""Harbor with its decoding, for `nsa-doctor run --subject harbor.adapter:make`."""

from __future__ import annotations

from nsa_doctor import Adapter

from . import factory


def make() -> Adapter:
    """The decoder, read at once, and by prefill and steps."""
    return Adapter(
        make=factory.make,
        call=lambda decoder, x: decoder(x),
        seams={
            "prefill": lambda decoder, x: decoder.prefill(x),
            "step": lambda decoder, x, cache: decoder.step(x, cache),
        },
    )
