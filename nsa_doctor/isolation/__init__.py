"""The parent's side of a child process: it starts, asks, watches and ends it; no torch."""
