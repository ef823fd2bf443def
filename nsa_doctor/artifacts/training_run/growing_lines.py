"""The lines of a file that grows, is cut back, is replaced or vanishes; read where reading left off, and no further."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LONGEST_LINE = 65_536
MOST_LINES = 1_000_000
LARGEST_FILE = 1 << 30
_PIECE = 1 << 20


@dataclass
class Tail:
    """One file; `trouble` says, once it is met, what keeps the rest of it from being read."""

    path: Path
    trouble: str = ""
    num_lines: int = 0
    _offset: int = 0
    _rest: bytes = b""
    _identity: tuple[int, int] = (0, 0)
    _last: bytes = field(default=b"", repr=False)

    def is_anew(self) -> bool:
        """Whether the file is another than the one read so far, or shorter, or what was read of it has changed."""
        try:
            facts = self.path.stat()
            identity = (facts.st_dev, facts.st_ino)
            if not self._offset:
                return False
            if identity != self._identity or facts.st_size < self._offset:
                return True
            return stat.S_ISREG(facts.st_mode) and self._has_changed()
        except OSError:
            return bool(self._offset)

    def forget(self) -> None:
        """Begin at the beginning."""
        self.trouble, self.num_lines, self._offset, self._rest, self._last = "", 0, 0, b"", b""

    def lines(self) -> Iterator[str]:
        """The whole lines that were added; a last one without an end waits for it, see `rest`."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                self.trouble = "is not a regular file and was not read"
                return
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                self._identity = (facts.st_dev, facts.st_ino)
                file.seek(self._offset)
                while not self.trouble and (piece := file.read(_PIECE)):
                    yield from self._taken(piece)
        except OSError as error:
            self.trouble = f"cannot be read: {error.strerror}"

    @property
    def rest(self) -> str:
        """What stands after the last whole line: the last line of a file that ends without a line break."""
        return self._rest.decode("utf-8", errors="replace")

    def _taken(self, piece: bytes) -> Iterator[str]:
        self._offset += len(piece)
        self._last = (self._last + piece)[-64:]
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)  # too long to be a line of a log: cut, and no heartbeat
            self._rest = b""
        for line in lines:
            self.num_lines += 1
            if self.num_lines > MOST_LINES:
                self.trouble = f"only the first {MOST_LINES} lines were read"
                return
            if line.strip() and len(line) <= LONGEST_LINE:
                yield line.decode("utf-8", errors="replace")
            elif line.strip():
                yield ""
        if self._offset > LARGEST_FILE:
            self.trouble = f"only the first {LARGEST_FILE >> 20} MiB were read"

    def _has_changed(self) -> bool:
        """A table that was cut back and has grown past where it was is recognised by the bytes before the place."""
        with self.path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            return file.read(len(self._last)) != self._last
