"""Peak memory of one attention block of m7c_125m, forward and backward, against length: each in a fresh process.

make bench
"""

import subprocess
import sys

import numpy as np
import pytest

LENGTHS = (1024, 2048, 4096, 8192, 16384)
CHILD = """
import sys
import torch
from nsa import NSAttention, load_config
from nsa_doctor.probes.hooks.memory import start_peak

config = load_config("m7c_125m_fast_log").model
module = NSAttention(config)
module(torch.randn(1, 64, config.dim)).sum().backward()  # what the libraries allocate once
x = torch.randn(1, int(sys.argv[1]), config.dim, requires_grad=True)
peak = start_peak(torch.device("cpu"))
module(x).sum().backward()
print(peak())
"""


def peak_bytes(num_tokens: int) -> int:
    child = subprocess.run([sys.executable, "-c", CHILD, str(num_tokens)], capture_output=True, text=True, check=True)
    return int(child.stdout)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_memory_grows_with_length_not_with_its_square(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = [peak_bytes(length) for length in LENGTHS]
    exponent = float(np.polyfit(np.log(LENGTHS), np.log(peaks), 1)[0])
    with capsys.disabled():
        shown = ", ".join(f"S={length} {peak / 2**20:.0f} MiB" for length, peak in zip(LENGTHS, peaks, strict=True))
        print(f"\npeak memory: {shown}; exponent {exponent:.2f}")
    assert exponent <= 1.15
