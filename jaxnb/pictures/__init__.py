"""Pictures of what moves between devices: a collective step by step, and who sends to whom."""
