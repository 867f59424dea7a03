"""One cell: what is sent, what comes back, how it is merged, bounded and shown."""
