"""Timed passes of a subject under pytest-benchmark: `pytest --pyargs nsa_doctor.benchmarks --nsa-subject SPEC`."""
