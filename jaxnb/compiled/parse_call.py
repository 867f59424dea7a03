"""A call in text, taken apart so that it can be compiled instead of run."""

from __future__ import annotations

import ast
import hashlib

from jaxnb.errors import UsageError
from jaxnb.labels import one_line

EXAMPLE = "`f(x)`, or `jax.jit(f)(x, key=3)`"


def parse_call(code: str) -> ast.Call:
    """Returns the call that an expression is.

    Raises:
        UsageError: It is none: no expression, or one that calls nothing at its outermost.
    """
    text = code.strip()
    if not text:
        raise UsageError(f"Name the call whose collectives you want: {EXAMPLE}. Nothing was run.")
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        if " --" in text:
            raise UsageError(
                f"`{one_line(text)}`: options stand before the call, `%spmd_collectives --devices "
                "8 f(x)`. Nothing was run."
            ) from None
        raise UsageError(
            f"`{one_line(text)}` is not a Python expression ({reason}). Nothing was run. Type "
            f"the call whose collectives you want: {EXAMPLE}."
        ) from None
    return require_call(body, text)


def require_call(body: ast.expr, text: str) -> ast.Call:
    """Returns an expression if it is a call.

    Raises:
        UsageError: It is none.
    """
    if isinstance(body, ast.Call):
        return body
    advice = f"Type the call whose collectives you want: {EXAMPLE}."
    if isinstance(body, ast.Name | ast.Attribute):
        advice = f"If it is a function, type it with its arguments: `{one_line(text)}(...)`."
    elif isinstance(body, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript):
        advice = f"Put it into a function: `def f(...): return {one_line(text)}`, then `f(...)`."
    raise UsageError(f"`{one_line(text)}` is not a call. Nothing was run. {advice}")


def taken_apart(call: ast.Call) -> ast.Expression:
    """Returns an expression of a call's parts: the function, a tuple and a dict of arguments."""
    keywords = ast.Dict(
        keys=[None if k.arg is None else ast.Constant(k.arg) for k in call.keywords],
        values=[k.value for k in call.keywords],
    )
    positional = ast.Tuple(elts=list(call.args), ctx=ast.Load())
    parts = ast.Tuple(elts=[call.func, positional, keywords], ctx=ast.Load())
    return ast.fix_missing_locations(ast.Expression(ast.copy_location(parts, call)))


MAX_PARTS = 10_000
MAX_DEPTH = 20
MAX_CHARS = 200

_SINGLE = (bool, int, float, complex, str, bytes, type(None))


def plain_text(value: object) -> str | None:
    """Returns a text that is equal for equal plain values; None for values of other kinds.

    It is the value's ``repr``, or for a long one its beginning and a digest.
    """
    left = [MAX_PARTS]
    try:
        text = _text(value, left, MAX_DEPTH)
    except ValueError:  # it is none, has too many parts, or an integer has too many digits
        return None
    if len(text) <= MAX_CHARS:
        return text
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:MAX_CHARS]}… ({digest})"


def _text(value: object, left: list[int], depth: int) -> str:
    left[0] -= 1
    kind = type(value)
    if left[0] < 0 or depth < 0:
        raise ValueError
    if kind in _SINGLE:
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset) and kind.__module__ == "builtins":
        parts = [_text(each, left, depth - 1) for each in list(value)]
        inside = sorted(parts) if isinstance(value, set | frozenset) else parts
        return f"{kind.__name__}({', '.join(inside)})"
    if kind is dict and isinstance(value, dict):
        pairs = [
            f"{_text(k, left, depth - 1)}: {_text(v, left, depth - 1)}"
            for k, v in value.copy().items()
        ]
        return f"{{{', '.join(pairs)}}}"
    raise ValueError
