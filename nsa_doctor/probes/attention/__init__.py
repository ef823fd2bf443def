"""What attention reads, chooses, gates and caches, against its equations."""
