"""From the model to HTML and text: labels, merged output, cards.

Everything here is pure: it takes dataclasses of :mod:`jaxnb.model` and returns text. Nothing
imports jax, IPython or ipyparallel, so the cards can be made and tested without any of them.
"""
