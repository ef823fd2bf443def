"""From a configuration, or from `package.module:factory`, to a source of batches that can be examined.

A factory returns, at each call, a new iterable of batches: mappings with `input_ids` and perhaps `labels` (or
`targets`), pairs (x, y), or tensors of rows [B, S + 1]. It may take any of the arguments `split` ("train", "heldout"),
`rank` and `world_size`, `seed`, and `state`, by name; what it does not take is not tried. A position is what `state()`
or `state_dict()` of the loader or its iterator gives; it goes back in as `state` or through `load_state_dict`. The
spec may also name an iterable itself, or a `DataSubject`, which says everything.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from nsa.config import RunConfig
from nsa.data import Batch, open_loader
from nsa.train.objective import next_tokens
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import top_package
from nsa_doctor.core.measurement import Place
from nsa_doctor.subject.named import import_named

_SHARE_OF_LIMIT = 0.95  # of the loader's own wait, so that it can say itself where it stands
_SEED = 0
_METHODS = ("__iter__", "__next__", "__getitem__", "__call__", "__init__")


def of_config(config: RunConfig, limit_seconds: float | None = None) -> DataSubject:
    """The batches that `nsa.train` gets from a configuration, with the targets that its loss makes of them."""
    seconds = config.data.limit_seconds if limit_seconds is None else limit_seconds

    def opened(opening: Opening) -> Iterable[Any]:
        loader = open_loader(
            config,
            rank=opening.rank,
            world_size=opening.world_size,
            split=opening.split,
            state=opening.state,
            limit_seconds=seconds * _SHARE_OF_LIMIT,
        )
        return _Ours(loader)

    train = config.train
    return DataSubject(
        name=config.data.dataset,
        open=opened,
        takes=frozenset({"split", "rank", "state"}),
        seq_len=train.seq_len,
        vocab_size=config.model.vocab_size,
        batch_size=train.batch_size,
        targets="next",
        is_endless=True,
        limit_seconds=seconds,
        description=f"{config.data.dataset}, tokenizer {config.data.tokenizer}",
        where=_place(open_loader),
    )


class _Ours:
    """A loader of ours; its batches say what is predicted from what."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> "_Ours":
        return self

    def __next__(self) -> dict[str, Any]:
        batch: Batch = next(self._loader)
        return {
            "input_ids": batch.tokens[:, :-1],
            "targets": next_tokens(batch.tokens, batch.documents),
            "documents": batch.documents,
            "epoch": batch.epoch,
        }

    def state(self) -> Any:
        return self._loader.state()

    def close(self) -> None:
        self._loader.close()


def of_factory(spec: str, like: DataSubject | None = None) -> DataSubject:
    """What a factory gives; `like` says what it is compared with. Raises SubjectUnusableError."""
    named = import_named(spec)
    if isinstance(named, DataSubject):
        return replace(named, packages=named.packages or top_package(spec))
    factory = named if callable(named) else lambda: named
    known = _taken(factory)
    wanted = {"split", "rank", "world_size", "seed", "state"} & known
    takes = frozenset({"split", "rank", "state"} & known) - ({"rank"} if "world_size" not in known else set())

    def opened(opening: Opening) -> Iterable[Any]:
        values = {**vars(opening), "seed": _SEED}
        made = factory(**{name: values[name] for name in wanted})
        source: Iterable[Any] = made
        if opening.state is not None and "state" not in wanted:
            made.load_state_dict(opening.state)
        return source

    base = like or DataSubject(name=spec, open=opened)
    return replace(
        base,
        name=spec,
        open=opened,
        takes=takes,
        targets=None,
        is_endless=False,
        description=spec,
        where=_place(factory),
        packages=top_package(spec),
    )


def _taken(factory: Callable[..., Any]) -> frozenset[str]:
    signature = attempt(lambda: inspect.signature(factory))
    return frozenset() if isinstance(signature, Caught) else frozenset(signature.parameters)


def _place(function: Any) -> Place:
    bare = inspect.unwrap(function)
    bare = getattr(bare, "func", bare)
    code = getattr(getattr(bare, "__func__", bare), "__code__", None)
    if code is None:
        kind = bare if isinstance(bare, type) else type(bare)
        methods = (getattr(kind, name, None) for name in _METHODS)
        code = next((found for method in methods if (found := getattr(method, "__code__", None)) is not None), None)
    if code is None:
        return Place(function=str(getattr(bare, "__name__", "")))
    return Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
