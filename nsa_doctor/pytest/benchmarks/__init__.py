"""Timed passes of a subject, for pytest-benchmark: `pytest --pyargs nsa_doctor.pytest.benchmarks --nsa-subject SPEC`."""
