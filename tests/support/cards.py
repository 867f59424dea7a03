"""What every card has to hold to: its markup is whole, inert, and kept where it is not trusted."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.model.cells import ProcessError, RichOutput, ValueInfo
from jaxnb.model.group import DeviceInfo, GroupInfo, ProcessInfo

EVIL = "<script>alert(1)</script>\"'"


# What JupyterLab keeps of a notebook that is not trusted, as far as cards use it: elements,
# attributes, and styles.
KEPT_TAGS = re.compile(
    "a|b|br|code|details|div|i|img|pre|progress|span|summary|table|tbody|td|th|thead|tr"
)
KEPT_ATTRIBUTES = re.compile("alt|class|href|max|open|rel|src|style|target|title|value|width")
COLOR = r"(#[0-9a-f]{6}|rgba\(\d+,\d+,\d+,0?\.\d+\))"
LENGTH = r"-?[\d.]+(px|%)?"
KEPT_STYLES = re.compile(
    rf"color:{COLOR}"
    rf"|background:(none|{COLOR}|linear-gradient\(to right(,{COLOR} [\d.]+%)+\))"
    rf"|border:(0|1px dashed {COLOR})|border-(left|top):\dpx solid {COLOR}"
    rf"|box-shadow:3px 3px 0 0 {COLOR}|flex:(none|1 1 0)"
    r"|(border-spacing|font-size|gap|height|left|line-height|margin|margin-left|max-width|opacity"
    rf"|padding|padding-left|padding-right|top|width):{LENGTH}( {LENGTH})*"
    r"|font-family:Menlo,Consolas,monospace"
    r"|(align-items|border-collapse|cursor|display|flex-wrap|font-style|font-weight"
    r"|overflow-x|position|text-align|text-decoration|vertical-align|white-space):[a-z-]+",
    re.IGNORECASE,
)


class Tags(HTMLParser):
    """Collects tags; fails on one that is not closed in order, or not kept where untrusted."""

    VOID = frozenset({"br", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert KEPT_TAGS.fullmatch(tag)
        assert all(KEPT_ATTRIBUTES.fullmatch(name) for name, _ in attrs)
        for declaration in filter(None, (dict(attrs).get("style") or "").split(";")):
            assert KEPT_STYLES.fullmatch(declaration), declaration
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def group(n: int = 4, text: str = "node0", state: str = "ready", detail: str = "") -> GroupInfo:
    processes = tuple(
        ProcessInfo(
            i,
            31300 + i,
            text,
            tuple(DeviceInfo(2 * i + j, i, "cpu", "cpu") for j in range(2)),
            i,
            "dead" if detail and i == 2 else "ready",
            detail if i == 2 else "",
        )
        for i in range(n)
    )
    return GroupInfo(processes, state, "cpu", "fork", "gloo", "0.10.2", 1.42, 3, 7)


def cell(
    values: list[ValueInfo | None],
    *,
    seconds: list[float] | None = None,
    errors: dict[int, ProcessError] | None = None,
    displays: dict[int, tuple[RichOutput, ...]] | None = None,
    num_processes: int | None = None,
    compile_seconds: float = 0.0,
    stdout: str = "",
) -> CellResult:
    per_process = {
        i: ProcessResult(
            process_index=i,
            value_info=value,
            stdout=stdout,
            stderr="",
            displays=(displays or {}).get(i, ()),
            error=(errors or {}).get(i),
            seconds=seconds[i] if seconds else 0.1,
            compile_seconds=compile_seconds,
        )
        for i, value in enumerate(values)
    }
    return CellResult(7, "x", per_process, num_processes or len(values), 0.31)


def value(text: str, digest: bytes = b"", **other: str) -> ValueInfo:
    bundle = {"text/plain": text} | {key.replace("_", "/"): data for key, data in other.items()}
    return ValueInfo("some.Type", digest, None, "", bundle)


def text(content: str, **fields) -> RichOutput:
    return RichOutput({"text/plain": content}, **fields)
