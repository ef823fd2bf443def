"""Healthy models with marked places; `# top`, `# mixer: start` and the like are where a fault's lines go."""
