"""What a cache of transformers holds of one layer: an `NSACache` for every set of rows that have as many tokens.

transformers finds these classes by the layer types of the configuration: `DynamicCache(config=model.config)`,
`StaticCache(config=model.config, max_cache_len=…)` and `generate` make caches of them.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, StaticLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from nsa.hf.configuration import LAYER_TYPE, NSAConfig
from nsa.hf.internal import require_named_layers
from nsa.nn.cache import NSACache
from nsa.ops.geometry import Geometry

require_named_layers()

# What transformers calls a cache, in what a model is given and what it answers: "past_key_values" before 5.24.
CACHE_NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
Rows = tuple[int, ...]


class RowsCache(NamedTuple):
    """The cache of some rows of a batch, in this order; they have as many tokens each."""

    rows: Rows
    cache: NSACache


class NSACacheLayer(CacheLayerMixin):
    """The past of one layer, in columns of a batch: what an attention_mask marks as padding is counted, not held.

    `NSAModel` alone fills it. `reorder_cache`, `batch_select_indices` and `batch_repeat_interleave` choose rows;
    `crop(-n)` takes back the newest n columns of what came since `activate_past_recording`.
    """

    _layer_type = LAYER_TYPE
    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False
    max_length = -1

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self.parts: list[RowsCache] = []
        self.num_columns = 0
        self._num_whole = 0  # newest columns in which every row has a token
        self._records_past = False

    def part_by(self, partition: Sequence[Rows], geometry: Geometry) -> list[NSACache]:
        """A cache for each of these sets of rows, none of which has rows of several sets that are held."""
        if not self.parts:
            self.parts = [RowsCache(rows, self._new(len(rows), geometry)) for rows in partition]
        elif [part.rows for part in self.parts] != list(partition):
            self.parts = [RowsCache(rows, self._chosen(rows)) for rows in partition]
        return [part.cache for part in self.parts]

    def require_room(self, num_columns: int) -> None:
        """Raise ValueError where so many columns more are too many."""

    def added(self, num_columns: int, num_whole: int) -> None:
        """Count columns that the caches have taken in; in the newest `num_whole` every row has a token."""
        if num_columns == num_whole:
            num_whole += self._num_whole
        self.num_columns, self._num_whole = self.num_columns + num_columns, num_whole

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before the first token."""
        return sum(len(part.rows) for part in self.parts) or -1

    def lengths(self) -> list[int]:
        """Tokens held of each row."""
        by_row = {row: part.cache.length for part in self.parts for row in part.rows}
        return [by_row[row] for row in range(len(by_row))]

    def get_seq_length(self) -> int:
        """Columns seen, padding included."""
        return self.num_columns

    def get_max_length(self) -> int:
        """Columns that there is room for, or -1 without a limit."""
        return self.max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns of a mask for so many queries, and the first of them."""
        return self.num_columns + query_length, 0

    def reset(self) -> None:
        """Forget everything."""
        self.parts, self.num_columns, self._num_whole = [], 0, 0

    def batch_select_indices(self, indices: Int[Tensor, " R"]) -> None:
        """Hold these rows, in this order."""
        if len(self.parts) == 1 and indices.dtype != torch.bool:  # nothing has to be known of the indices
            (part,) = self.parts
            part.cache.select_rows(indices)
            self.parts = [RowsCache(tuple(range(indices.shape[0])), part.cache)]
        elif self.parts:
            chosen = indices.nonzero()[:, 0].tolist() if indices.dtype == torch.bool else indices.tolist()
            self.parts = [found for part in self.parts for found in _reordered(part, chosen)]
        self._num_whole = 0

    def reorder_cache(self, beam_idx: Int[Tensor, " R"]) -> None:
        """As `batch_select_indices`, for beams."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Hold every row so many times, one behind the other."""
        self.batch_select_indices(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Keep what is added from here on until a `crop`."""
        self._records_past = True
        for part in self.parts:
            part.cache.record_past()

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest -tokens_to_remove columns.

        Raises ValueError for a positive number, for columns in which a row has padding, and for those that were added
        before `activate_past_recording`, before the last `crop` or before rows were chosen.
        """
        num_columns = -tokens_to_remove
        if num_columns < 0:
            raise ValueError(f"tokens_to_remove must be negative, as many as to take back, got {tokens_to_remove}")
        if num_columns > self._num_whole:
            raise ValueError(f"{num_columns} columns cannot be taken back: {self._num_whole} hold a token of every row")
        for part in self.parts:
            part.cache.crop(num_columns)
        self.num_columns, self._num_whole = self.num_columns - num_columns, self._num_whole - num_columns

    def update(self, *given: Any, **named: Any) -> NoReturn:
        """Refused: a layer has keys and values for three branches, which `NSAModel` adds."""
        raise NotImplementedError(
            "a cache of this model is filled by NSAModel alone: it holds no pair of keys and values"
        )

    def lazy_initialization(self, *given: Any, **named: Any) -> NoReturn:
        """Refused, as `update` is."""
        self.update()

    def offload(self) -> NoReturn:
        """Refused: `cache_of` says so before anything is computed."""
        raise NotImplementedError("a cache of this model cannot be offloaded")

    def prefetch(self) -> NoReturn:
        """Refused, as `offload` is."""
        self.offload()

    def _new(self, num_rows: int, geometry: Geometry) -> NSACache:
        cache = NSACache(geometry, num_rows, None if self.max_length < 0 else self.max_length)
        if self._records_past:
            cache.record_past()
        return cache

    def _chosen(self, rows: Rows) -> NSACache:
        """The cache of some rows of a part: its own, if they are all of them, or a copy."""
        part = next(part for part in self.parts if set(rows) <= set(part.rows))
        if rows == part.rows:
            return part.cache
        cache = deepcopy(part.cache)
        cache.select_rows(torch.tensor([part.rows.index(row) for row in rows]))
        return cache


class NSAStaticCacheLayer(NSACacheLayer, StaticLayer):
    """The same with room for `max_cache_len` columns from the start, and for no more.

    It is not compiled: what a query reads depends on what it chooses.
    """

    def __init__(self, max_cache_len: int, **others: Any) -> None:
        NSACacheLayer.__init__(self, max_cache_len=max_cache_len, **others)
        self.max_length = max_cache_len

    def require_room(self, num_columns: int) -> None:
        if self.num_columns + num_columns > self.max_length:
            left = self.max_length - self.num_columns
            raise ValueError(f"a static cache of {self.max_length} tokens has room for {left} more, got {num_columns}")


def only_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache of a forward pass, under either name that transformers gives it; raises ValueError for two."""
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of one argument: give one of them, got both")
    return past_key_values if cache is None else cache


def cache_of(past: Cache | None, config: NSAConfig) -> list[NSACacheLayer]:
    """The layers of a cache for this model; raises ValueError, naming what is wrong, for a cache of another kind."""
    how = "DynamicCache(config=model.config) makes one"
    if not isinstance(past, Cache):
        raise ValueError(  # noqa: TRY004 - as for any other argument
            f"{CACHE_NAME} must be a Cache of transformers, got {type(past).__name__}: {how}"
        )
    if past.offloading:
        raise ValueError("a cache of this model cannot be offloaded: leave out cache_implementation='offloaded'")
    if not past.layers and type(past) is DynamicCache:  # made without a configuration, and still empty
        past.layers.extend(NSACacheLayer() for _ in range(config.num_hidden_layers))
    layers = [layer for layer in past.layers if isinstance(layer, NSACacheLayer)]
    if not len(past.layers) == len(layers) == config.num_hidden_layers:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in past.layers}))
        raise ValueError(
            f"{CACHE_NAME} must have {config.num_hidden_layers} layers of NSACacheLayer, "
            f"got {len(past.layers)} of {kinds}: {how}"
        )
    return layers


def _reordered(part: RowsCache, chosen: list[int]) -> list[RowsCache]:
    """What is left of a part where the new row i is the old row chosen[i]."""
    where = {row: index for index, row in enumerate(part.rows)}
    rows = tuple(new for new, old in enumerate(chosen) if old in where)
    if not rows:
        return []
    part.cache.select_rows(torch.tensor([where[chosen[row]] for row in rows]))
    return [RowsCache(rows, part.cache)]
