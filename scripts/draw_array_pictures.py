"""Draws the pictures of ``docs/array_pictures.md`` into ``docs/_static/arrays/``.

A real group of 4 processes × 2 CPU devices makes the arrays; each card's pictures are saved
as pieces of HTML. What the terminal shows, and what ``jax.debug.visualize_array_sharding`` shows in
the same group, is printed, to be copied into the page.
"""

from __future__ import annotations

from pathlib import Path

import jaxnb
from jaxnb.arrays.card_array import array_card, array_pictures
from jaxnb.display.html import html_of

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static" / "arrays"

PREPARE = """
mesh = jax.make_mesh((4, 2), ("data", "model"))
cube = jax.make_mesh((2, 2, 2), ("x", "y", "z"))

def put(shape, mesh, *spec):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return jax.make_array_from_callback(
        shape, NamedSharding(mesh, P(*spec)), lambda index: values[index]
    )
"""

ARRAYS = {
    "one-d": 'put((16,), mesh, ("data", "model"))',
    "two-d": 'put((8, 8), mesh, "data", "model")',
    "partial": 'put((8, 4), mesh, "data", None)',
    "across": 'put((8, 4), mesh, None, "model")',
    "three-d": 'put((4, 4, 4), cube, "x", "y", "z")',
    "four-d": 'put((4, 2, 8, 6), cube, "x", None, "y", "z")',
}


def main() -> None:
    """Starts the group, draws, and stops it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with jaxnb.start(4, devices_per_process=2, platform="cpu") as session:
        session.run(PREPARE)
        for name, code in ARRAYS.items():
            result = session.run(f"shown = {code}\nshown")
            assert result.array is not None
            picture = html_of(array_pictures(result.array))
            (FOLDER / f"{name}.html").write_text(f"{picture}\n")
            print(f"## {name}\n\n{array_card(result.array).text}\n")
            peer = session.run("jax.debug.visualize_array_sharding(shown)", raise_on_error=False)
            first = peer.per_process[0]
            shown = [output.data.get("text/plain", "") for output in first.displays]
            print("visualize_array_sharding:", first.error or "\n" + "\n".join(shown), "\n")


if __name__ == "__main__":
    main()
