"""The importance of selection blocks, read off the compressed branch's probabilities."""
