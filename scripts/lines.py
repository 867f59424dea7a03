"""Counts lines of code by folder: without docstrings, comments and blank lines.

    python scripts/lines.py [FOLDER…]

FOLDER is ``jaxnb`` by default. Prints the files and lines of each folder, and the modules of more
than 500 lines as they stand.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

LONG = 500
_OF_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Returns how many lines of a module have code; a text by itself, as a docstring, is none."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in _OF_LAYOUT:
                code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def main(folders: list[str]) -> None:
    """Prints what there is in folders."""
    for folder in map(Path, folders or ["jaxnb"]):
        lines, files = Counter[Path](), Counter[Path]()
        paths = sorted(folder.rglob("*.py"))
        for path in paths:
            lines[path.parent] += code_lines(path)
            files[path.parent] += 1
        for each in sorted(lines):
            print(f"{lines[each]:7} lines in {files[each]:3} files  {each}")
        print(f"{lines.total():7} lines in {files.total():3} files  {folder} in all")
        for path in paths:
            if (count := len(path.read_text(encoding="utf-8").splitlines())) > LONG:
                print(f"        {path} stands on {count} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
