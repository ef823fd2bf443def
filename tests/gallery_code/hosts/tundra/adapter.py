"""The stack with its decoding and its training; and the language model around it, with its training.

Padding and packed documents are arguments of the stack's forward, by their usual names.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor import Adapter, TrainingLoop

from .config import TrainConfig, TundraConfig
from .factory import make as make_stack
from .model import TundraStack
from .training import TinyLM, Trainer, evaluate


def make_model() -> TinyLM:
    """A small language model: token ids [B, S] in, logits out."""
    cfg = TrainConfig()
    return TinyLM(TundraConfig(), cfg.vocab, cfg.dropout)


def model_around(stack: TundraStack) -> TinyLM:
    """A language model that trains a given stack; its embedding and head stay as they are, the same every time.

    They are no part of the module that is examined, and so they are not trained with it.
    """
    like, cfg = stack.norm.weight, TrainConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(41)
        model = TinyLM(stack.cfg, cfg.vocab, cfg.dropout)
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
    """The trainer before its first step. As in `train`, the model is put into training mode once."""
    cfg = TrainConfig()
    trainer = Trainer(model.train(), cfg)

    def evaluate_on(batches: Sequence[Tensor]) -> float:
        return evaluate(model, batches, cfg.ignore)

    return TrainingLoop(step=trainer.step, evaluate=evaluate_on, snapshot=trainer.snapshot, restore=trainer.restore)


def begin_around(stack: TundraStack) -> TrainingLoop:
    """The same of a language model around the stack, on ids made of the embeddings that the stack would take."""
    cfg = TrainConfig()
    model = model_around(stack)
    trainer = Trainer(model.train(), cfg)

    def step(batches: Sequence[Tensor]) -> float:
        return trainer.step([ids_of(x) for x in batches])

    def evaluate_on(batches: Sequence[Tensor]) -> float:
        return evaluate(model, [ids_of(x) for x in batches], cfg.ignore)

    return TrainingLoop(step=step, evaluate=evaluate_on, snapshot=trainer.snapshot, restore=trainer.restore)


def make() -> Adapter:
    """The stack; prefill and step return outputs and the cache, which step changes in place."""
    return Adapter(
        make=make_stack,
        call=lambda stack, x: stack(x),
        seams={
            "prefill": lambda stack, x: stack.prefill(x),
            "step": lambda stack, x, cache: stack.step(x, cache),
            "loop": begin_around,
        },
    )


def make_language_model() -> Adapter:
    """The language model in training: what its loss is of, and what the embedding and the head get."""
    return Adapter(make=make_model, call=lambda model, tokens: model(tokens), input="tokens", seams={"loop": begin})
