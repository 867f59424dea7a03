"""Where processes stand in a running cell, what that means, and what is done about it."""
