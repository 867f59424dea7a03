"""Values between notebook and processes: how arrays lie, pull, push, and pictures of them."""
