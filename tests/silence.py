"""Whether the doctor is silent on healthy `nsa`: seeds x small configurations x a profile, each as a user would run it.

python -m tests.silence --seeds 100 --profile smoke --jobs 2
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODEL = "model: {dim: 32, n_heads: %d, n_kv_groups: %d, d_k: %d, d_v: %d}\n"
CONFIGS = {
    "average": MODEL % (4, 2, 8, 8) + "nsa: {l: 8, d: 4, l_sel: 16, n_sel: 4, w: 24}\n",
    "mlp": MODEL % (4, 1, 8, 12) + "nsa: {l: 8, d: 8, l_sel: 8, n_sel: 5, w: 10, phi: mlp, gate: sigmoid}\n",
    "conv": MODEL % (2, 2, 16, 8) + "nsa: {l: 4, d: 2, l_sel: 12, n_sel: 3, w: 7, phi: conv, shared_kv: true}\n",
}


def outcome(config: Path, seed: int, profile: str) -> tuple[str, list[str]]:
    """The decision, and one line per finding or crash."""
    words = ["run", "--config", str(config), "--seed", str(seed), "--profile", profile, "--jobs", "1"]
    command = [sys.executable, "-m", "nsa_doctor", *words, "--format", "json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        return "BROKEN", [done.stderr.strip()]
    report = json.loads(done.stdout)
    findings = [
        f"{f['code']} {f['message']} ({f['repro']})" for result in report["results"] for f in result["findings"]
    ]
    crashed = [f"{r['code']} CRASH {r['reason']}" for r in report["results"] if r["verdict"] == "CRASH"]
    return report["decision"], findings + crashed


def main() -> int:
    """Print every finding and a last line of counts; 1 when there was any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    decisions: dict[str, int] = {}
    num_findings = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for name, text in CONFIGS.items():
            Path(folder, f"{name}.yaml").write_text(text, encoding="utf-8")
        cases = [(Path(folder, f"{name}.yaml"), seed) for seed in range(options.seeds) for name in CONFIGS]
        answers = pool.map(lambda case: outcome(*case, options.profile), cases)
        for (config, seed), (decision, findings) in zip(cases, answers, strict=True):
            decisions[decision] = decisions.get(decision, 0) + 1
            num_findings += len(findings)
            for line in findings:
                print(f"{config.stem} seed {seed}: {line}", flush=True)
    print(f"{len(cases)} runs of profile {options.profile}: {num_findings} findings; {decisions}")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
