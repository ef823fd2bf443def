"""What a verdict requires, and the verdict."""
