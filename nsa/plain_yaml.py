"""A small YAML file to plain Python values; what a configuration has no use for is refused.

Anchors, aliases, tags, keys given twice, more than 64 KiB and anything but a regular file are errors. Plain scalars
are read as YAML 1.2 reads them: `2e-4` is a number, `off` and `2024-01-01` are text, `010` is no octal eight.
"""

import re
import stat
from pathlib import Path
from typing import Any, ClassVar

import yaml

MAX_BYTES = 65_536


def read_plain_yaml(path: Path) -> object:
    """The value a file holds: None when it is empty, else mappings, lists, text, numbers, booleans, None.

    Raises ValueError with one sentence that does not name the file; what came from the file is escaped in it.
    """
    return parse_plain_yaml(_read_text(path))


def parse_plain_yaml(text: str) -> object:
    """The value that text holds; raises ValueError as `read_plain_yaml` does."""
    try:
        return yaml.load(text, _PlainLoader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ValueError(_sentence(error)) from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"must be printable text, got character {error.character:#04x} at {error.position}") from None
    except RecursionError:
        raise ValueError("must not be nested hundreds of levels deep") from None
    except ValueError:  # Python's own limit on the digits of an integer
        raise ValueError("must not hold a number of thousands of digits") from None


def _read_text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("must be a regular file, not a folder, a pipe or a device")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"must be at most {MAX_BYTES} bytes, which is ample for a configuration")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text, got byte {raw[error.start]:#04x} at {error.start}") from None


def _sentence(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "must be YAML"
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{where}: {problem if len(problem) <= 160 else problem[:157] + '...'}"


class _PlainLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:  # an alias carries the anchor it repeats
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags (!, !!) are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_SCALARS = {  # kind: what it looks like, and the characters it may start with ("" stands for nothing at all)
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    "float": (
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
for _kind, (_pattern, _starts) in _SCALARS.items():
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _starts)
