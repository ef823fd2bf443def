"""Modules with one bug each, as a user's package would hold them; the line at fault is marked `# here`."""
