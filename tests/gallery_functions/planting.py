"""What a case of this gallery is, and how its source is laid out as a file and imported from there."""

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.gallery_code.planting import Patch, patched
from tests.gallery_functions.scenes import Scene

HERE = Path(__file__).parent
FOLDERS = ("hosts", "alone", "odd")
SHOWN = Path(tempfile.gettempdir()) / f"nsa-doctor-gallery-functions-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class Host:
    """A file with an attention function, and how that is called."""

    file: str
    function: str
    like: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A host, with edits of its source: `edits` are pairs of text, of which the first occurs once."""

    name: str
    host: Host
    says: str
    scene: Scene
    edits: tuple[tuple[str, str], ...] = ()

    @property
    def like(self) -> str:
        return self.host.like

    @property
    def subject(self) -> str:
        """What `nsa-doctor run --subject` takes."""
        return f"fn:tests.gallery_functions.cases:{self.name}"

    @property
    def spec(self) -> str:
        """What the function is meant to be, in the words of `--spec`."""
        options = self.scene.options
        words = ["causal" if options.get("causal") else "bidirectional"]
        if "window" in options:
            words.append(f"window={options['window'][0] + 1}")
        if self.scene.num_kv_heads != self.scene.heads:
            words.append(f"gqa={self.scene.heads // self.scene.num_kv_heads}")
        words += [f"{name}={options[name]}" for name in ("softcap", "scale") if name in options]
        words += [name for name in ("alibi", "sinks") if options.get(name)]
        return ",".join(words)

    def source(self) -> str:
        """The host's text with the edits; ValueError where a text to replace does not occur once."""
        return patched(self.unedited(), self.patches)

    def unedited(self) -> str:
        """The host's text."""
        (found,) = (HERE / each / self.host.file for each in FOLDERS if (HERE / each / self.host.file).is_file())
        return found.read_text(encoding="utf-8")

    @property
    def patches(self) -> tuple[Patch, ...]:
        return tuple(Patch(self.host.file, old, new) for old, new in self.edits)


@dataclass(frozen=True, kw_only=True)
class Wrong(Case):
    """A function that is wrong: `tensors` are, in the scene; with the changes of it in `right_with` none is.

    At fault is what the edits put in, or the lines whose text is in `line`, without indentation.
    """

    kind: str
    tensors: tuple[str, ...]
    line: tuple[str, ...] = ()
    right_with: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_backward_only(self) -> bool:
        """Whether what comes out is right and gradients alone are wrong."""
        return all(name.startswith("d") for name in self.tensors)

    def lines_at_fault(self) -> tuple[int, ...]:
        """The numbers of the lines that a good diagnosis names."""
        lines = self.source().splitlines()
        if self.line:
            return tuple(number for number, line in enumerate(lines, start=1) if line.strip() in self.line)
        steps = SequenceMatcher(a=self.unedited().splitlines(), b=lines, autojunk=False).get_opcodes()
        return tuple(
            number + 1 for kind, _, _, start, stop in steps if kind != "equal" for number in range(start, stop)
        )


@dataclass(frozen=True, kw_only=True)
class Healthy(Case):
    """A function that is odd and right."""


def lay_out(case: Case, folder: Path = SHOWN) -> Path:
    """The case's source as a file below the folder, the same one for the same text."""
    text = case.source()
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:12] / case.host.file
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    return path


def load(case: Case, folder: Path = SHOWN) -> Callable:
    """The case's function, imported from its file."""
    return getattr(load_module(case, folder), case.host.function)


def load_module(case: Case, folder: Path = SHOWN) -> ModuleType:
    """The case's module, imported from its file once for each name."""
    path = lay_out(case, folder)
    name = f"{path.stem}_{path.parent.name}_{case.name.lower()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
