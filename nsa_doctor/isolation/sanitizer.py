"""Which access of which kernel stopped a GPU, as NVIDIA's compute-sanitizer says it, where that is installed.

https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place

SECONDS = 240.0  # for one check; every access is looked at, which slows kernels down
_USUAL = "/usr/local/cuda/bin/compute-sanitizer"
_ERROR = re.compile(
    r"Invalid __(?P<space>\w+)__ (?P<kind>read|write|atomic\w*) of size (?P<bytes>[\d,]+) bytes\n"
    r"(?P<lines>(?:=+ {2,}.*\n?)*)"
)
_AT = re.compile(
    r"at (?P<kernel>[^\n]+?)(?:\+0x[0-9a-f]+)?(?: in (?P<file>[^\n]+?):(?P<line>\d+)(?::(?P<older>[^\n]+))?)?(?:\n|$)"
)
_THREAD = re.compile(r"by thread \((?P<thread>[\d,]+)\) in block \((?P<block>[\d,]+)\)")
_WHY = re.compile(r"(?:Address|Access(?: to| at)?) 0x[0-9a-f]+ is (?P<why>[^\n,.]+)")
_BESIDE = re.compile(
    r"(?:and )?is (?P<bytes>[\d,]+) bytes (?P<side>\w+) the nearest allocation at \w+ of size (?P<size>[\d,]+)"
)


@dataclass(frozen=True)
class Access:
    """In words, and the kernel's line; its file is a name without a folder, and empty where no lines were compiled."""

    sentence: str
    place: Place

    def added_to(self, finding: Finding) -> Finding:
        """The finding with it: at the kernel's line where that lies in the file, or the folder, of the launch."""
        launch, place = finding.where, self.place
        beside = Path(launch.file).with_name(Path(place.file).name) if launch.file and place.file else None
        if beside is None or not beside.is_file():
            at = f" ({place.line_text})" if place.file else ""
            return replace(finding, message=f"{finding.message}; compute-sanitizer: {self.sentence}{at}")
        message = f"{finding.message}; compute-sanitizer: {self.sentence}, launched at {launch.line_text}"
        return replace(finding, message=message, where=replace(place, file=str(beside)))


def find() -> str | None:
    """The program, where there is one."""
    return shutil.which("compute-sanitizer") or shutil.which(_USUAL)


def watching(program: str, folder: str) -> tuple[str, ...]:
    """The words that a command begins with, of whose processes the first invalid access is written to that folder."""
    how = ("--tool", "memcheck", "--target-processes", "all", "--print-limit", "1", "--show-backtrace", "no")
    return program, *how, "--log-file", f"{folder}/%p"


def read(folder: str) -> Access | None:
    """What was written there; None where no access was invalid."""
    for file in sorted(Path(folder).iterdir()):
        found = _ERROR.search(file.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return _access(found)
    return None


def _access(error: re.Match[str]) -> Access:
    lines = error["lines"]
    at, thread, why, beside = (pattern.search(lines) for pattern in (_AT, _THREAD, _WHY, _BESIDE))
    kernel = (at["older"] or at["kernel"]) if at else ""  # older releases write an address, and the kernel last
    article = "an" if error["kind"].startswith("a") else "a"
    words = [f"{article} {error['kind']} of {error['bytes']} bytes of {error['space']} memory"]
    words += [f"in kernel {kernel}"] if kernel else []
    words += [f"by thread ({thread['thread']}) of block ({thread['block']})"] if thread else []
    words += [f"is {why['why']}"] if why else []
    sentence = " ".join(words)
    if beside:
        sentence += f", {beside['bytes']} bytes {beside['side']} the nearest allocation of {beside['size']} bytes"
    is_known = at is not None and at["file"] is not None
    place = Place(file=at["file"], line=int(at["line"]), function=kernel) if at and is_known else Place()
    return Access(sentence, place)
