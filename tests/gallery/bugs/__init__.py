"""One planted bug a file: what one sees, MODULE at fault, `# here` on the line, and make(), which builds it."""
