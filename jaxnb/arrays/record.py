"""An object of a class that only the processes know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn


class NotMoved:
    """Stands in a pulled value for a part that cannot be pickled, and stayed on the processes.

    Args:
        what: What it is: ``"function relu"``.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<not moved: {self.what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotMoved, (self.what,)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: it is on the processes only."""
        raise RuntimeError(f"{self!r} is on the processes only. Call it in a cell there.")


class Record:
    """An object of a class that a cell defined, as the notebook holds it: its parts by name.

    The class itself stays on the processes. Parts are attributes, and items by name.

    Attributes:
        _type_name: Name of the class.
        _parts: Name to part.
    """

    __slots__ = ("_parts", "_type_name")

    def __init__(self, type_name: str, parts: dict[str, Any]) -> None:
        self._type_name = type_name
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Record.__slots__:  # while it is being unpickled
            raise AttributeError(name)
        try:
            return self._parts[name]
        except KeyError:
            raise AttributeError(
                f"{self._type_name} has no part {name!r}; it has {', '.join(self._parts)}"
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parts]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self._type_name, self._parts) == (other._type_name, other._parts)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Record, (self._type_name, self._parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={part!r}" for name, part in self._parts.items())
        return f"{self._type_name}({parts})"
