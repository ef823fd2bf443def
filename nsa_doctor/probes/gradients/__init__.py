"""Whether gradients are right, arrive, and depend on what they should."""
