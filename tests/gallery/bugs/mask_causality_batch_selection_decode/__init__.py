"""Who may see whom: time, batch rows, blocks, caches."""
