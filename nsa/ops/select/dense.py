"""Queries that choose every block they see: those of the first n_sel blocks (Eq. 11), which attend to a causal band."""

from dataclasses import dataclass

from torch import Tensor

from nsa.ops.geometry import Geometry

_MOST_QUERIES = 64


@dataclass(frozen=True)
class DenseQueries:
    """The first `count` of T queries that choose every block up to their own, and how many keys those see together."""

    count: int
    num_keys: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, geometry: Geometry | None) -> "DenseQueries":
        """Of queries q [B, T, H, Dk], the last T of the tokens k [B, S, G, Dk]; none of slots that are held."""
        first_query = k.shape[1] - q.shape[1]
        count = 0 if geometry is None else geometry.num_dense(first_query, q.shape[1])
        return cls(count=count, num_keys=first_query + count)

    @property
    def queries(self) -> slice:
        """These of the T queries."""
        return slice(self.count)

    @property
    def keys(self) -> slice:
        """What they see of the S keys."""
        return slice(self.num_keys)

    @property
    def band(self) -> "Causal":
        """What these queries see of those keys."""
        return Causal(first_query=self.num_keys - self.count)


@dataclass(frozen=True)
class Causal:
    """Each query sees all keys up to itself."""

    first_query: int

    @property
    def max_queries(self) -> int:
        """Longest tile of queries worth forming."""
        return _MOST_QUERIES

    def keys(self, queries: slice) -> slice:
        """All keys up to the last of `queries`."""
        return slice(0, self.first_query + queries.stop)

    def seen_by_all(self, queries: slice) -> slice:
        """All keys up to the first of `queries`."""
        return slice(0, self.first_query + queries.start + 1)

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether key stands at query or before it."""
        return key <= self.first_query + query
