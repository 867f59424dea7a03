"""What processes did when, and what they use: timelines and statistics."""
