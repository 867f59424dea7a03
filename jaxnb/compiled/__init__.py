"""What calls compile to: collectives, plans for devices nobody has, and comparisons."""
