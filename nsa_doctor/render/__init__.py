"""Report to text, one file per format."""
