"""What a pickle describes, as records of it: no class is looked up, nothing is compared or hashed."""

from typing import Any


class Name:
    """`module.name`, asked for and not looked up."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Made:
    """What calling a name with arguments would give; `state`, `items` and `pairs` are what was to be put in later.

    `length` is how many values there would be in it.
    """

    __slots__ = ("arguments", "items", "length", "name", "pairs", "state")

    def __init__(self, name: str, arguments: Any, length: int = 1) -> None:
        self.name, self.arguments, self.length = name, arguments, length
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []


class Row:
    """A list or a set."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items


class Table:
    """A dictionary as pairs: a key may be anything, and need not be hashed."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []


class Kept:
    """A persistent id: what it stands for lies outside of the pickle."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key
