"""How the notebook and the processes talk: signing, frames, and the one call to a sentinel."""
