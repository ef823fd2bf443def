"""The stack with its decoding and its training; and the language model around it, with its training.

The language model's decoding is examined on the stack's embeddings, which are all different. Ids repeat, and in the
first block repeated ids have the same score, up to rounding, which differs with the shape of a call: where such tokens
compete for the last places, whole passes and decoding may take different ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor import Adapter, TrainingLoop

from .config import QuarryConfig, TrainConfig
from .factory import make as make_stack
from .model import QuarryStack
from .training import TinyLM, Trainer, evaluate


def make_model() -> TinyLM:
    """A small language model: token ids [B, S] in, logits and the balancing loss out."""
    return TinyLM(QuarryConfig(), TrainConfig().vocab)


def model_around(stack: QuarryStack) -> TinyLM:
    """A language model that trains a given stack; its embedding and head stay as they are, the same every time.

    They are no part of the module that is examined: if they were trained, putting back the stack's weights would not
    put back the loop's.
    """
    like = stack.norm.weight
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(97)
        model = TinyLM(stack.cfg, TrainConfig().vocab)
    model.to(device=like.device, dtype=like.dtype)
    model.stack = stack
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def ids_of(x: Tensor) -> Tensor:
    """Token ids of embeddings: the signs of the first channels are an id's bits."""
    bits = (TrainConfig().vocab - 1).bit_length()
    places = 2 ** torch.arange(bits, device=x.device)
    return ((x[..., :bits] > 0) * places).sum(-1)


def begin(model: TinyLM) -> TrainingLoop:
    """The trainer before its first step, without snapshots. As in `train`, the model is put into training mode once."""
    cfg = TrainConfig()
    trainer = Trainer(model.train(), cfg)

    def evaluate_on(batches: Sequence[Tensor]) -> float:
        return evaluate(model, batches, cfg.ignore)

    return TrainingLoop(step=lambda batches: trainer.step(list(batches)), evaluate=evaluate_on)


def begin_around(stack: QuarryStack) -> TrainingLoop:
    """The same of a language model around the stack, on ids made of the embeddings that the stack would take."""
    loop = begin(model_around(stack))
    return TrainingLoop(
        step=lambda batches: loop.step([ids_of(x) for x in batches]),
        evaluate=lambda batches: loop.evaluate([ids_of(x) for x in batches]),
    )


def make() -> Adapter:
    """The stack; prefill and step return outputs and the cache, which step changes in place."""
    return Adapter(
        make=make_stack,
        call=lambda stack, x: stack(x),
        seams={
            "prefill": lambda stack, x: stack.prefill(x),
            "step": lambda stack, x, state: stack.step(x, state),
            "loop": begin_around,
        },
    )


def make_language_model() -> Adapter:
    """The language model in training: what its loss is of, and what the embedding and the head get."""
    return Adapter(make=make_model, call=lambda model, tokens: model(tokens)[0], input="tokens", seams={"loop": begin})
