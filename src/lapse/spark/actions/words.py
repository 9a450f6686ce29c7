"""Keyword arguments as the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def words_of(command: str, place: str | None, options: Mapping[str, object]) -> tuple[str, ...]:
    """A command, what it is about, and its options, by their names with underscores.

    None and False are options that are not given, True is one without a value, and one that may be
    repeated has a list; `-c` has a mapping.
    """
    found = [command]
    for name, value in options.items():
        found += _words(name, value)
    if place is not None:
        found += ["--", place]
    return tuple(found)


def _words(name: str, value: object) -> Iterable[str]:
    if name == "-c":
        assert isinstance(value, Mapping)
        return [f"-c{key}={_text(text)}" for key, text in value.items()]
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [f"{option}={one}" for one in many]


def _text(value: object) -> str:
    """Python's words for yes and no are not Kafka's."""
    return str(value).lower() if isinstance(value, bool) else str(value)
