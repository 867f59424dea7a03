"""What JAX does without a word: hints, and the first NaN of a cell."""
