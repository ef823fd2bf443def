"""The pytest plugin: checks as test items, and benchmarks."""
