"""Numbers of bytes as words."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(n_bytes: float) -> str:
    """For people: `1.2 GiB`, the largest unit that there is at least one of; `512 B`."""
    value, unit = float(n_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
