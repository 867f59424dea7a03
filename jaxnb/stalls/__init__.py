"""Watches over a running cell: where processes stand, what that means, and when it is ended."""
