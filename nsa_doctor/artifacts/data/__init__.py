"""Sources of batches under examination: open them, take some batches within a limit, read what came, never judge."""
