"""compute-sanitizer's words, and the child that is run under it: here by a program that writes what it would."""

import textwrap
from pathlib import Path

import pytest

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import DEVICE_LOST
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.isolation import sanitizer
from nsa_doctor.isolation.supervisor import Supervisor

PRINTED = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at far+0xc0 in kernels.py:2
=========     by thread (0,1,0) in block (2,0,0)
=========     Access to 0x8348e2800000 is out of bounds
=========     and is 1,025 bytes after the nearest allocation at 0x7f48eac00000 of size 512 bytes
=========
========= ERROR SUMMARY: 68 errors
"""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at 0x1e0 in /tmp/kernels.cu:12:far(float*, int)
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7fff01 is misaligned
"""
WITHOUT_LINES = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ atomic of size 4 bytes
=========     at void at::native::add<float>(int)+0xd0
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f00 is out of bounds
"""
SUBJECT = """
from torch.nn.functional import scaled_dot_product_attention

def lost(query, key, value, is_causal=False):
    if query.requires_grad:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)
"""


def read(text: str, folder: Path) -> sanitizer.Access:
    (folder / "100").write_text("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n")
    (folder / "200").write_text(text)
    found = sanitizer.read(str(folder))
    assert found is not None
    return found


def test_the_kernel_its_line_and_how_far_it_missed(tmp_path: Path) -> None:
    found = read(PRINTED, tmp_path)
    assert found.place == Place(file="kernels.py", line=2, function="far")
    assert found.sentence == (
        "a write of 4 bytes of global memory in kernel far by thread (0,1,0) of block (2,0,0) is out of bounds, "
        "1,025 bytes after the nearest allocation of 512 bytes"
    )


def test_other_releases_and_kernels_without_lines(tmp_path: Path) -> None:
    older = read(OLDER, tmp_path)
    assert (older.place.file, older.place.line) == ("/tmp/kernels.cu", 12)
    assert older.sentence.endswith("by thread (31,0,0) of block (0,0,0) is misaligned")
    without = read(WITHOUT_LINES, tmp_path)
    assert without.place == Place()
    assert without.sentence.startswith("an atomic of 4 bytes of global memory in kernel")


@pytest.mark.parametrize("text", ["", "========= COMPUTE-SANITIZER\n========= Device not supported\n", "\x00\xff"])
def test_where_it_says_nothing_nothing_is_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "100").write_bytes(text.encode("latin-1"))
    assert sanitizer.read(str(tmp_path)) is None


def test_a_kernel_elsewhere_leaves_the_line_of_the_launch(tmp_path: Path) -> None:
    launch = Place(file=str(tmp_path / "launches.py"), line=7)
    with_it = read(PRINTED, tmp_path).added_to(Finding(message="it is lost", where=launch))
    assert with_it.where == launch
    assert with_it.message.endswith("of 512 bytes (kernels.py:2)")


def test_a_lost_device_is_examined_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.py").write_text(SUBJECT)
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(
        textwrap.dedent(
            """\
            #!/bin/sh
            while [ "$1" != --log-file ]; do shift; done
            printf '%s' "$PRINTED" > "$(dirname "$2")/$$"
            echo "$(cat "$SEEN" 2>/dev/null)x" > "$SEEN"
            shift 2
            exec "$@"
            """
        )
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("PRINTED", PRINTED)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []
    supervisor = Supervisor(ExaminationRequest(spec="fn:kernels:lost", like="sdpa"), tell=said.append)
    try:
        assert supervisor.load() == []
        (found,) = supervisor.check("FUN101", 60.0).findings
    finally:
        supervisor.close()
    assert found.evidence["kind"] == DEVICE_LOST
    assert "illegal memory access" in found.message
    assert "compute-sanitizer: a write of 4 bytes" in found.message
    assert found.message.endswith(f"launched at {tmp_path / 'kernels.py'}:6")
    assert found.where == Place(file=str(tmp_path / "kernels.py"), line=2, function="far")
    assert said == ["looking for the access with compute-sanitizer"]
    assert (tmp_path / "seen").read_text() == "x\n"
