"""The private names of JAX, and XLA's text of programs: nothing else in jaxnb knows them."""
