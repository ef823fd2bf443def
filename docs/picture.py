"""Draw docs/report.svg: the example of README.md, examined by `nsa-doctor run`, as a terminal shows it."""

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

README = Path(__file__).parents[1] / "README.md"
COMMAND = "run --subject my_attention:Attention"
STYLES = {r"^(GO|NO-GO)\b.*": "bold red", r"^[A-Z]{3}\d{3} .*": "bold", r"\d+ FAIL": "red", r"\d+ pass": "green"}


def said() -> str:
    """What the command prints of the example."""
    example = next(code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "triu" in code)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "my_attention.py").write_text(example)
        words = [sys.executable, "-m", "nsa_doctor", *COMMAND.split(), "--quiet"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 1:
        raise SystemExit(f"the example is to be a NO-GO, exit code 1, and ended with {done.returncode}: {done.stderr}")
    return done.stdout


def main() -> None:
    text = Text(f"$ nsa-doctor {COMMAND}\n\n{said()}")
    for pattern, style in STYLES.items():
        text.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(text)
    console.save_svg(str(README.parent / "docs/report.svg"), title="nsa-doctor")


if __name__ == "__main__":
    main()
