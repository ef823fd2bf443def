"""What is raised where a tracker's store cannot be read."""


class StoreError(ValueError):
    """A store that cannot be read; one sentence says why and what would help."""
