"""Any nn.Module as a subject: what it takes is found out by asking, what it returns is unwrapped."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.answer_shapes import answering_when_seen, with_answers_for_tokens, with_width_of_output
from nsa_doctor.adapters.cache_discovery import with_cache_methods
from nsa_doctor.adapters.decoding_discovery import with_decoding
from nsa_doctor.adapters.filler_ids import with_filler_ids
from nsa_doctor.adapters.input_discovery import ask, caller, is_lazy, parameter_names, require_one_input
from nsa_doctor.adapters.length_limits import within_limits, within_time
from nsa_doctor.adapters.loss_discovery import with_loss
from nsa_doctor.adapters.packing_discovery import with_packing
from nsa_doctor.adapters.padding_discovery import with_padding
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.measurement import DTYPES, Point
from nsa_doctor.probes.model.inputs import make_input
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.subject.contract import InputKind, Subject, SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest

_DEFAULT_WIDTH = 64
_LENGTH_FOR_LAZY = 16


def adapt(
    request: SubjectRequest,
    factory: Callable[[], Any],
    asking: Callable[[int], None] = lambda length: None,
    made: Callable[[nn.Module], None] = lambda module: None,
) -> Subject:
    """The subject a factory makes: a Subject as it is, a module [B, S, dim] -> [B, S, dim] or ids [B, S] -> logits.

    `made` receives the module and `asking` each length before it is tried at it. Raises SubjectUnusableError for
    anything else, and SubjectFailedError when the factory raises.
    """
    assert request.spec is not None
    with preserved_state():
        seed_everything(request.seed)
        offered = _made(request.spec, factory)
        if isinstance(offered, Subject):
            return offered if offered.options else replace(offered, options=("--subject", request.spec))
        adapter = offered if isinstance(offered, Adapter) else Adapter(make=factory)
        module = _made(request.spec, adapter.make) if offered is adapter else offered
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise SubjectUnusableError(
                f"subject {request.spec} must return an nn.Module, an Adapter or a Subject, got {kind}"
            )
        made(module)
        _require_readable(request.spec, module)
        _require_modes(request.spec, module)
        if adapter.call is None:
            require_one_input(request.spec, module)
        guess = _asked(request, adapter, module, asking)
        guess = with_cache_methods(guess if offered is adapter else _found_by_names(guess, module), module)
        guess = _masks_found(guess, module)
        if not request.explore:
            return answering_when_seen(guess)
        limited = within_limits if adapter.max_length is None else within_time
        found = limited(guess, module, asking, request.avoid, request.profile)
        if found.call_seconds or request.avoid:  # some length is served, or one hangs
            return found
        answering = with_answers_for_tokens(guess, module)
        if answering.answer is None:
            return found
        return limited(answering, module, asking, request.avoid, request.profile)


def _found_by_names(guess: Subject, module: nn.Module) -> Subject:
    """With what the names of its parameters and methods say that it offers beside its forward."""
    return with_loss(with_decoding(guess, module), module)


def _masks_found(guess: Subject, module: nn.Module) -> Subject:
    """With how its forward takes padded and packed rows, where it does and no adapter says so."""
    return with_packing(with_padding(guess, module), module)


def packages_of(module: nn.Module) -> tuple[str, ...]:
    """The top-level package of its class; where that is torch's, those that its parts come from."""
    return _packages([type(module)]) or _packages(type(child) for child in module.modules())


def libraries_of(module: nn.Module) -> tuple[str, ...]:
    """Further top-level packages that its parts come from."""
    every = _packages(type(child) for child in module.modules())
    return tuple(name for name in every if name not in packages_of(module))


def _packages(kinds: Iterable[type]) -> tuple[str, ...]:
    names = {kind.__module__.partition(".")[0] for kind in kinds}
    return tuple(sorted(names - {"torch", "builtins", "__main__"}))


def _asked(request: SubjectRequest, adapter: Adapter, module: nn.Module, asking: Callable[[int], None]) -> Subject:
    """The subject once it is known what the module takes."""
    assert request.spec is not None
    kind, width = request.input or adapter.input, request.width or adapter.width
    seams: dict[str, Any] = dict(adapter.seams)
    subject = Subject(
        name=request.spec,
        description=f"{type(module).__module__}.{type(module).__qualname__}",
        build=lambda _seed: adapter.make(),
        forward=adapter.call or (lambda module, x: module(x)),
        input=kind or "embeddings",
        width=width or _DEFAULT_WIDTH,
        is_width_kept=False,
        dtype=_native_dtype(module),
        modes=adapter.modes,
        device=request.device,
        geometry=adapter.geometry,
        spec=adapter.spec,
        notes=adapter.notes,
        memory_exponent=adapter.memory_exponent,
        time_exponent=adapter.time_exponent,
        max_slowdown=adapter.max_slowdown,
        packages=packages_of(module),
        **seams,
    )
    if adapter.max_length is not None:
        subject = replace(subject, max_length=adapter.max_length)
    guesses = _guesses(subject, module, adapter, [kind] if kind else ["embeddings", "tokens"], width)
    is_declared = kind is not None and width is not None
    guess = ask(guesses, module, sorted(request.lengths), asking, is_declared)
    options: tuple[str, ...] = ("--subject", request.spec)
    options += ("--input", guess.input) if adapter.input is None else ()
    if request.width is not None or (adapter.width is None and guess.width not in _widths(module, guess.input)):
        options += ("--width", str(guess.width))
    options += () if request.size is None else ("--size", request.size)
    guess = with_filler_ids(replace(guess, options=options), module)
    return with_width_of_output(guess, module, asking, request.avoid)


def _made(spec: str, make: Callable[[], Any]) -> Any:
    """What a factory gives; what is not installed is no failure of the subject's, wherever it is imported."""
    made = attempt(make)
    if isinstance(made, Caught):
        if isinstance(made.error, (SubjectUnusableError, SubjectFailedError)):
            raise made.error
        if isinstance(made.error, ModuleNotFoundError):
            raise SubjectUnusableError(f"subject {spec} cannot be built: {made.sentence}") from made.error
        raise SubjectFailedError("build", made, None)
    return made


def _guesses(
    subject: Subject, made: nn.Module, adapter: Adapter, kinds: list[InputKind], width: int | None
) -> list[Subject]:
    """What the module may take, the likeliest first: every kind and width, by position and by name."""
    guesses = []
    for kind in kinds:
        for each in [width] if width is not None else _widths(made, kind):
            names = parameter_names(made, kind) if adapter.call is None else [None]
            for name in names:
                forward = adapter.call or caller(name)
                guess = replace(subject, input=kind, width=each, forward=forward)
                guesses.append(replace(guess, build=_building(guess, adapter.make)) if is_lazy(made) else guess)
    starts_with_ids = isinstance(next((leaf for leaf in _leaves(made)), None), nn.Embedding)
    return sorted(guesses, key=lambda guess: guess.input != "tokens") if starts_with_ids else guesses


def _building(subject: Subject, factory: Callable[[], Any]) -> Callable[[int], nn.Module]:
    """Builds a module and runs it once, which gives the parameters of lazy modules their shapes."""

    def build(seed: int) -> nn.Module:
        module: nn.Module = factory()
        x = make_input(subject, Point(length=_LENGTH_FOR_LAZY, dtype=subject.dtype), seed, torch.device("cpu"))
        with torch.no_grad():
            subject.forward(module, x)
        return module

    return build


def _require_readable(spec: str, module: nn.Module) -> None:
    """Refuse parameters and buffers of a class that lets nobody read them; raises SubjectUnusableError."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if type(tensor) in (Tensor, nn.Parameter) or nn.parameter.is_lazy(tensor):
            continue
        read = attempt(lambda tensor=tensor: (int(tensor.numel()), tensor.detach().clone(), int(tensor.nbytes)))
        if isinstance(read, Caught):
            raise SubjectUnusableError(
                f"subject {spec} cannot be examined: its {name} is a {type(tensor).__name__}, which cannot be read as "
                f"tensors are ({read.sentence})"
            ) from read.error


def _require_modes(spec: str, module: nn.Module) -> None:
    """Refuse what has one mode alone, as an exported program; raises SubjectUnusableError."""
    modes = [(part, part.training) for part in module.modules()]
    switched = attempt(lambda: module.train(module.training))
    for part, mode in modes:
        part.training = mode
    if isinstance(switched, Caught) and isinstance(switched.error, NotImplementedError):
        raise SubjectUnusableError(
            f"subject {spec} cannot be examined: it is in one mode for ever ({switched.sentence}); "
            "give the module that it was exported from"
        ) from switched.error


def _native_dtype(module: nn.Module) -> str:
    """The dtype most of the parameters' values have; float32 when there are none."""
    counts: dict[str, int] = {}
    for parameter in module.parameters():
        if not nn.parameter.is_lazy(parameter):
            name = str(parameter.dtype).removeprefix("torch.")
            counts[name] = counts.get(name, 0) + parameter.numel()
    known = [name for name in counts if name in DTYPES]
    return max(known, key=lambda name: counts[name], default="float32")


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
        yield from () if nn.parameter.is_lazy(parameter) else reversed(parameter.shape)
    if is_lazy(module):
        for child in module.modules():
            yield getattr(child, "out_features", None) or getattr(child, "out_channels", None)
    yield _DEFAULT_WIDTH


def _attributes(module: nn.Module, names: tuple[str, ...]) -> Iterator[Any]:
    holders = [module, *(getattr(module, name, None) for name in ("config", "cfg", "args"))]
    for holder in holders:
        for name in names:
            yield holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.modules() if not any(True for _ in child.children()))
