"""Timed passes, for pytest-benchmark: `pytest --pyargs nsa_doctor.pytest.benchmarks --nsa-subject SPEC`."""
