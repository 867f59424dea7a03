"""Text that JSON in UTF-8 has no place for, in what a cell prints and shows."""

from __future__ import annotations

from jaxnb.session import Session

CODE = """
import sys
from IPython.display import display
print("a\\ud800b", "\\xe9")
print("c\\ud800", file=sys.stderr)
display({"text/plain": "d\\ud800"}, raw=True)
class Odd:
    def __repr__(self):
        return "e\\ud800"
Odd()
"""


def test_half_a_surrogate_pair_is_escaped(session: Session) -> None:
    result = session.run(CODE, timeout=60)
    for each in result.per_process.values():
        assert (each.stdout, each.stderr) == ("a\\ud800b \xe9\n", "c\\ud800\n")
        assert [output.data["text/plain"] for output in each.displays] == ["d\\ud800"]
        assert each.value_info is not None
        assert each.value_info.mimebundle["text/plain"] == "e\\ud800"
