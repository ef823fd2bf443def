"""The stack with its decoding."""

from nsa_doctor import Adapter

from .factory import make as make_stack


def make() -> Adapter:
    """The stack; prefill and step return outputs and state."""
    return Adapter(
        make=make_stack,
        call=lambda stack, x: stack(x),
        seams={
            "prefill": lambda stack, x: stack.prefill(x),
            "step": lambda stack, x, state: stack.step(x, state),
        },
    )
