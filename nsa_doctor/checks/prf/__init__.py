"""PRF: time and memory, and how they grow."""
