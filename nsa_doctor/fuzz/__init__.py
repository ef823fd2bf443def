"""`nsa-doctor fuzz`: Hypothesis drives the inputs, a child process tries them, the least that fails is kept."""
