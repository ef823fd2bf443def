"""The order of documents: all shards again and again, one split of them, shuffled in blocks; resumable anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from pydantic import Field

from nsa.config import Count
from nsa.data.documents import Document, Shard
from nsa.data.errors import Blame, DataError
from nsa.data.progress import Progress
from nsa.data.random_words import random_order
from nsa.strict import Strict


class Position(Strict):
    """Where the next document is found."""

    epoch: Count = Field(default=0, description="how often all shards have been read")
    shard: Count = Field(default=0, description="shard the block starts in")
    example: Count = Field(default=0, description="example of the shard the block starts at")
    block: Count = Field(default=0, description="blocks of this epoch before it")
    taken: Count = Field(default=0, description="documents of the block already given")


@dataclass(frozen=True)
class Placed:
    """A document with its shard, its position, and the position of the one after it."""

    document: Document
    shard: str
    at: Position
    after: Position


@dataclass(frozen=True)
class Order:
    """Documents of one split of a dataset.

    A block is `block_size` documents in a row; those of a block come in an order drawn from seed, epoch and block.
    A document is held out when its text's hash says so, so copies of it never lie in both splits.
    """

    name: str
    shards: tuple[Shard, ...]
    is_heldout: bool
    heldout_every: int
    block_size: int
    seed: int
    progress: Progress

    def documents(self, start: Position) -> Iterator[Placed]:
        """All documents from a position on, without end."""
        if not self.shards:
            raise DataError(f"{self.name}: has no shards")
        if start.shard > len(self.shards):
            raise DataError(
                f"{self.name}: has {len(self.shards)} shards, where the run stood at number {start.shard + 1}"
            )
        while True:
            has_given = start != Position(epoch=start.epoch)
            for placed in self._epoch(start):
                has_given = True
                yield placed
            if not has_given:
                raise DataError(self._nothing())
            start = Position(epoch=start.epoch + 1)

    def _epoch(self, start: Position) -> Iterator[Placed]:
        block: list[tuple[Document, str]] = []
        opening = start  # of the block; `taken` counts for the first one alone
        for document, shard, after in self._examples(start):
            block.append((document, shard))
            if len(block) == max(1, self.block_size):
                following = Position(epoch=start.epoch, shard=after[0], example=after[1], block=opening.block + 1)
                yield from self._shuffled(block, opening, following)
                block, opening = [], following
        yield from self._shuffled(block, opening, Position(epoch=start.epoch + 1))

    def _shuffled(self, block: list[tuple[Document, str]], opening: Position, following: Position) -> Iterator[Placed]:
        drawn = random_order(self.seed, (opening.epoch << 32) + opening.block, len(block))
        for taken, index in enumerate(drawn):
            if taken < opening.taken:
                continue
            is_last = taken == len(block) - 1
            after = following if is_last else opening.model_copy(update={"taken": taken + 1})
            document, shard = block[int(index)]
            yield Placed(document, shard, opening.model_copy(update={"taken": taken}), after)

    def _examples(self, start: Position) -> Iterator[tuple[Document, str, tuple[int, int]]]:
        """(document, its shard, (shard, example) of what comes after it) for all of this split, from `start` on."""
        for index in range(start.shard, len(self.shards)):
            shard = self.shards[index]
            self.progress.at("open", shard.name)
            for number, document in shard.documents(start.example if index == start.shard else 0):
                self.progress.at("read", shard.name)
                if document is not None and self._is_wanted(document):
                    yield document, shard.name, (index, number + 1)
                self.progress.at("read", shard.name)
                self.progress.done()

    def _is_wanted(self, document: Document) -> bool:
        with Blame("read", document.name):
            raw = document.text.encode("utf-8")  # half a surrogate pair is refused
        digest = blake2b(raw, digest_size=8).digest()
        return (int.from_bytes(digest, "little") % self.heldout_every == 0) == self.is_heldout

    def _nothing(self) -> str:
        if not any(document for shard in self.shards for _, document in shard.documents(0)):
            return f"{self.name}: holds no document with text"
        split = "held-out" if self.is_heldout else "train"
        return (
            f"{self.name}: no document falls to the {split} split; by its text 1 in {self.heldout_every} is held out: "
            "give more or smaller documents, or another data.heldout_every"
        )
