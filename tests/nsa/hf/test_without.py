"""transformers is needed by nsa.hf alone, and its absence is one sentence."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_missing_transformers_is_one_sentence_that_names_the_extra() -> None:
    hidden = "import sys, importlib.util as u; found = u.find_spec\n"
    hidden += "u.find_spec = lambda name, package=None: None if name == 'transformers' else found(name, package)\n"
    done = run(hidden + "import nsa.hf")
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: nsa.hf needs transformers, which is not installed: pip install 'transformers>=5.23'", (
        done.stderr
    )


def test_nothing_else_of_nsa_imports_transformers() -> None:
    code = "import sys, pkgutil, importlib, nsa\n"
    code += "for name in ('nsa.nn', 'nsa.train', 'nsa.train.run', 'nsa.data', 'nsa.config', 'nsa.ops.api'):\n"
    code += "    importlib.import_module(name)\n"
    done = run(code + "sys.exit('transformers' in sys.modules or 'nsa.hf' in sys.modules)")
    assert done.returncode == 0, done.stderr
