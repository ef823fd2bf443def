"""A page read as a browser reads it, as far as tests ask: elements with their attributes, ancestors and text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "wbr", "br", "hr", "img", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: "Element | None" = None
    parts: "list[Element | str]" = field(default_factory=list)

    @property
    def children(self) -> "list[Element]":
        return [part for part in self.parts if isinstance(part, Element)]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, tag: str = "", kind: str = "") -> "Iterator[Element]":
        for child in self.children:
            if tag in ("", child.tag) and (not kind or kind in child.classes):
                yield child
            yield from child.all(tag, kind)

    def one(self, tag: str = "", kind: str = "") -> "Element":
        (found,) = self.all(tag, kind)
        return found

    def by_id(self, name: str) -> "Element":
        (found,) = (each for each in self.all() if each.attributes.get("id") == name)
        return found


class PageParser(HTMLParser):
    """Fails on a tag that is closed and not open, on one left open, and on an attribute that is there twice."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.place = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice: {attrs}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.place)
        self.place.parts.append(element)
        if tag not in VOID:
            self.place = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.place.tag, f"</{tag}> closes <{self.place.tag}>"
        assert self.place.parent is not None
        self.place = self.place.parent

    def handle_data(self, data: str) -> None:
        self.place.parts.append(data)


def read_page(page: str) -> Element:
    parser = PageParser()
    parser.feed(page)
    parser.close()
    assert parser.place is parser.root, f"<{parser.place.tag}> is left open"
    return parser.root
