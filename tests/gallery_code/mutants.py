"""Mutates the code bases, which nobody wrote for a check, and counts what the doctor finds through their adapters.

python -m tests.gallery_code.mutants --count 20 --seed 3 --jobs 2 --output mutants.json

Mutants are those of `go-no-go --prove`, on every line of a package but its adapter's. One that computes the same as the
package (`tests.gallery_code.probe`: outputs, gradients, decoding, training) is passed over and counts for nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.policy.proving.mutants import Mutant, drawn
from nsa_doctor.policy.proving.source import read_source
from tests.gallery_code.planting import HOSTS as FOLDER
from tests.gallery_code.planting import Bug, lay_out
from tests.gallery_code.recall import HOSTS, Examined, examine, share_line

SECONDS = 120.0
_ROUNDING = 1e-9
_NOT_MUTATED = ("adapter.py", "__init__.py")


def mutants_of(host: str, seed: int) -> Iterator[Bug]:
    """All there are, in the order that the seed draws; the whole file is what stands in the place of the whole file."""
    paths = [path for path in sorted((FOLDER / host).glob("*.py")) if path.name not in _NOT_MUTATED]
    sources = {str(path): source for path in paths if (source := read_source(str(path))) is not None}
    lines = {file: range(1, source.text.count("\n") + 2) for file, source in sources.items()}
    return (_bug(mutant, sources[mutant.file].text) for mutant in drawn(sources, lines, seed))


def _bug(mutant: Mutant, text: str) -> Bug:
    file = Path(mutant.file).name
    return Bug(
        name=f"{file}:{mutant.line} {mutant.kind}",
        kind="mutant",
        file=file,
        old=text,
        new=mutant.text,
        line_text=(mutant.after.strip(),),
        explanation=f"    - {mutant.before.strip()}\n    + {mutant.after.strip()}",
        needs="adapter",
    )


@cache
def _healthy(host: str) -> Any:
    return _computed(host, None)


def _computed(host: str, change: Bug | None) -> Any:
    """What the probe finds; the sentence that it ends with where it finds nothing."""
    with TemporaryDirectory() as folder:
        lay_out(host, change, Path(folder))
        file = Path(folder) / "computed.pt"
        words = [sys.executable, "-m", "tests.gallery_code.probe", host, str(file)]
        paths = os.pathsep.join((folder, str(Path(__file__).parents[2])))
        settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                words, cwd=folder, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "it does not end"
        return torch.load(file) if file.exists() else done.stderr.strip()[-200:]


def are_equal(one: Any, other: Any) -> bool:
    """Whether two things that were computed are the same but for rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, _ROUNDING, _ROUNDING, equal_nan=True)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def examined(host: str, mutant: Bug) -> Examined | None:
    """What the doctor says of it; None where it computes the same."""
    if are_equal(_computed(host, mutant), _healthy(host)):
        return None
    return examine(host, mutant, "adapter")


def main(words: Sequence[str] | None = None) -> int:
    """Examine and print; 0 whatever the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", nargs="+", default=list(HOSTS), choices=HOSTS)
    parser.add_argument("--count", type=int, default=20, help="of each host, those that compute the same included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write every examination to this file, a line of JSON each")
    asked = parser.parse_args(words)
    plans = [(host, mutant) for host in asked.host for mutant in islice(mutants_of(host, asked.seed), asked.count)]
    done: list[Examined] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for (_, mutant), result in zip(plans, pool.map(lambda plan: examined(*plan), plans), strict=True):
            if result is None:
                continue
            done.append(result)
            print(f"{result}\n{mutant.explanation}", flush=True)
    found = [each for each in done if each.is_found]
    print(share_line("found, of those that compute something else", len(found), len(done)))
    print(share_line("  a finding within three lines of it", sum(each.is_at_line for each in found), len(found)))
    print(share_line("  or a line that its words name", sum(each.is_named for each in found), len(found)))
    if asked.output is not None:
        records = [{"host": each.host, "name": each.name, "found": each.is_found, "said": str(each)} for each in done]
        asked.output.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
