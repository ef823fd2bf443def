"""Any nn.Module as a subject: what it takes is found out by asking, what it returns is unwrapped."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.measurement import Point
from nsa_doctor.probes.perform import Conditions, SubjectFailedError, perform
from nsa_doctor.probes.state import preserved_state, seed_everything
from nsa_doctor.runner import Caught, attempt
from nsa_doctor.subject import InputKind, Subject, SubjectUnusableError

OUTPUT_NAMES = ("logits", "last_hidden_state", "output", "hidden_states")
_DEFAULT_WIDTH = 64
_MOST_LENGTHS_ASKED = 2


def adapt(
    name: str,
    factory: Callable[[], Any],
    input: InputKind | None,
    seed: int,
    lengths: tuple[int, ...],
    asking: Callable[[int], None] = lambda length: None,
) -> Subject:
    """The subject a factory makes: a Subject as it is, a module [B, S, dim] -> [B, S, dim] or ids [B, S] -> logits.

    `asking` is told each length before the module is tried at it. Raises SubjectUnusableError for anything else, and
    SubjectFailedError when the factory raises.
    """
    with preserved_state():
        seed_everything(seed)
        made = attempt(factory)
        if isinstance(made, Caught):
            raise SubjectFailedError("build", made, None)
        if isinstance(made, Subject):
            return made
        if not isinstance(made, nn.Module):
            raise SubjectUnusableError(
                f"subject {name} must return an nn.Module or a Subject, got {type(made).__name__}"
            )
        subject = Subject(
            name=name,
            description=f"{type(made).__module__}.{type(made).__qualname__}",
            build=lambda _seed: factory(),
            forward=lambda module, x: first_tensor(module(x)),
            input=input or "embeddings",
            width=_DEFAULT_WIDTH,
            packages=_packages(made),
        )
        asked = _ask(subject, made, [input] if input else ["embeddings", "tokens"], lengths, asking)
        return replace(asked, options=("--subject", name, "--input", asked.input))


def first_tensor(output: Any) -> Any:
    """The tensor in what a module returned: itself, the field that carries logits or states, the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    for name in OUTPUT_NAMES:
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, (tuple, list)):
        return next((value for value in output if isinstance(value, Tensor)), output)
    return output


def _ask(
    subject: Subject,
    module: nn.Module,
    kinds: list[InputKind],
    lengths: tuple[int, ...],
    asking: Callable[[int], None],
) -> Subject:
    """The first guess at what the module takes that it accepts; when it accepts none, the likeliest."""
    guesses = [replace(subject, input=kind, width=width) for kind in kinds for width in _widths(module, kind)]
    if len(guesses) == 1:
        return guesses[0]
    for length in sorted(lengths)[:_MOST_LENGTHS_ASKED]:
        asking(length)
        for guess in guesses:
            asked = replace(guess, build=lambda _seed: module)
            try:
                perform(asked, Point(length=length, mode="no_grad"), Conditions(forward_only=True))
            except SubjectFailedError:
                continue
            return guess
    starts_with_ids = isinstance(next((leaf for leaf in _leaves(module)), None), nn.Embedding)
    likeliest = "tokens" if starts_with_ids and "tokens" in kinds else kinds[0]
    return next(guess for guess in guesses if guess.input == likeliest)


def _widths(module: nn.Module, kind: InputKind) -> list[int]:
    """Guesses at the width of embeddings or the size of the vocabulary, the likeliest first."""
    guesses = _vocabularies(module) if kind == "tokens" else _dims(module)
    found = list(dict.fromkeys(guess for guess in guesses if isinstance(guess, int) and guess > 0))
    return found or [_DEFAULT_WIDTH]


def _vocabularies(module: nn.Module) -> Iterator[Any]:
    yield from _attributes(module, ("vocab_size", "num_tokens", "n_vocab", "num_embeddings"))
    for child in module.modules():
        if isinstance(child, nn.Embedding):
            yield child.num_embeddings


def _dims(module: nn.Module) -> Iterator[Any]:
    yield from _attributes(
        module, ("dim", "hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "model_dim", "embedding_dim")
    )
    for child in module.modules():
        for name in ("in_features", "embed_dim", "in_channels", "input_size", "embedding_dim"):
            yield getattr(child, name, None)
        shape = getattr(child, "normalized_shape", None)
        yield shape[-1] if isinstance(shape, (tuple, list)) and shape else None
    for parameter in module.parameters():
        yield from reversed(parameter.shape)
    yield _DEFAULT_WIDTH


def _attributes(module: nn.Module, names: tuple[str, ...]) -> Iterator[Any]:
    holders = [module, *(getattr(module, name, None) for name in ("config", "cfg", "args"))]
    for holder in holders:
        for name in names:
            yield holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.modules() if not any(True for _ in child.children()))


def _packages(module: nn.Module) -> tuple[str, ...]:
    """Top-level packages its classes come from, torch's apart."""
    names = {type(child).__module__.partition(".")[0] for child in module.modules()}
    return tuple(sorted(names - {"torch", "builtins", "__main__"}))
