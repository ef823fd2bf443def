"""Timed passes of a subject under pytest-benchmark: `pytest --pyargs nsa_doctor.pytest.benchmarks --nsa-subject SPEC`."""
