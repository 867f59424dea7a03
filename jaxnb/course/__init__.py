"""Exercises of the course, and :class:`Exercise` for a teacher's own.

A student defines a function in a ``%%spmd`` cell; in a plain cell, ``course.all_gather.check()``
runs it on all processes and compares it with NumPy. ``course`` alone lists all exercises.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxnb.options import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxnb.course.exercise import Exercise
    from jaxnb.course.verdict import Verdict, Wrong
    from jaxnb.display.card import Card

__all__ = ["Exercise", "Verdict", "Wrong", "exercises", "list"]

_HOMES = {"Exercise": "exercise", "Wrong": "verdict", "Verdict": "verdict"}

_MODULES = ("collectives", "sharding", "training", "science", "scaling_book")
"""In the order of the course."""


@cache
def _groups() -> Mapping[str, tuple[Exercise, ...]]:
    found = {}
    for name in _MODULES:
        module = import_module(f"jaxnb.course.tasks.{name}")
        found[name] = tuple(module.EXERCISES)
        for each in found[name]:
            each.listed = f"course.{each.name}"
    return found


def exercises() -> dict[str, Exercise]:
    """Returns all exercises by their names, in the order of the course."""
    return {each.name: each for group in _groups().values() for each in group}


def list() -> Card:
    """Returns a list of all exercises, with ✓ for those that have passed in this notebook."""
    from jaxnb.course.verdict import list_card

    return list_card([*_groups().items()])


def __getattr__(name: str) -> Any:
    # Imported on use: `jaxnb.course` is light.
    if name in _HOMES:
        return getattr(import_module(f"jaxnb.course.{_HOMES[name]}"), name)
    if not name.startswith("_") and (found := exercises().get(name)):
        return found
    near = suggest(name, exercises())
    raise AttributeError(f"There is no exercise {name!r}.{near} `course.list()` lists them.")


def __dir__() -> tuple[str, ...]:
    return (*__all__, *exercises())


def _repr_mimebundle_(**_: Any) -> dict[str, str]:
    card = list()
    return {"text/html": card.html, "text/plain": card.text}
