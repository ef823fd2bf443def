"""What a tensor or an operation tells by itself: counts, tolerances, schemas."""
