"""What a run left behind, read and judged: checkpoints, training runs, data."""
