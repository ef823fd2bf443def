"""A report's numbers as pictures: SVG that takes its colours from the page around it."""
