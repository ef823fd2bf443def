"""The language model with its decoding and its trainer; the decoder with its decoding.

Padding, packed documents and labels are arguments of `forward` by their usual names.
"""

from nsa_doctor import Adapter, TrainingLoop

from .factory import make as make_decoder_module
from .factory import make_lm
from .model import CobaltLM
from .train import Trainer


def begin(model: CobaltLM) -> TrainingLoop:
    """The trainer before its first step."""
    trainer = Trainer(model)
    return TrainingLoop(
        step=trainer.step, evaluate=trainer.evaluate, snapshot=trainer.snapshot, restore=trainer.restore
    )


def make() -> Adapter:
    """The language model: ids [B, S] in, logits out; prefill and step return logits and the cache."""
    return Adapter(
        make=make_lm,
        call=lambda model, ids: model(ids),
        input="tokens",
        seams={
            "prefill": lambda model, ids: model.prefill(ids),
            "step": lambda model, ids, cache: model.decode_step(ids, cache),
            "loop": begin,
        },
    )


def make_decoder() -> Adapter:
    """The decoder alone, over embeddings."""
    return Adapter(
        make=make_decoder_module,
        call=lambda decoder, x: decoder(x),
        seams={
            "prefill": lambda decoder, x: decoder.prefill(x),
            "step": lambda decoder, x, cache: decoder.decode_step(x, cache),
        },
    )
