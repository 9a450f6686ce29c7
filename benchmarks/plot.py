"""A plot with two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 24, 44, 60
_COLOURS = ("#1f6feb", "#d1570c", "#2da44e", "#8250df")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-size:15px;font-weight:600}"
    ".grid{stroke:#d0d7de;stroke-width:1}.line{fill:none;stroke-width:2}"
)

Points = Sequence[tuple[float, float]]


def log_log_plot(title: str, x_name: str, y_name: str, series: Mapping[str, Points]) -> str:
    """Lines through positive points, a legend, and a grid at the powers of ten."""
    x_axis = _Axis([x for points in series.values() for x, _ in points], _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis([y for points in series.values() for _, y in points], _HEIGHT - _BOTTOM, _TOP)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    turned = f'transform="translate(18 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_WIDTH / 2, 24, title, "title"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, x_name),
        f"<text {turned}>{escape(y_name)}</text>",
    ]
    for value, x in x_axis.ticks():
        parts.append(_grid(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 20, f"{value:g}"))
    for value, y in y_axis.ticks():
        parts.append(_grid(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    for n, (name, points) in enumerate(series.items()):
        parts += _line(name, [(x_axis.at(x), y_axis.at(y)) for x, y in points], n)
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """From values to pixels; whole decades around what is shown."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low = math.floor(math.log10(min(values)) + 1e-9)
        self._high = max(math.ceil(math.log10(max(values)) - 1e-9), self._low + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[tuple[float, float]]:
        values = [10.0**n for n in range(self._low, self._high + 1)]
        return [(value, self.at(value)) for value in values]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _line(name: str, pixels: Points, n: int) -> list[str]:
    colour = _COLOURS[n % len(_COLOURS)]
    y = _TOP + 16 + 20 * n
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    return [
        f'<polyline class="line" stroke="{colour}" points="{path}"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in pixels),
        f'<rect x="{_WIDTH - 250}" y="{y - 10}" width="12" height="12" fill="{colour}"/>',
        _text(_WIDTH - 232, y, name, anchor="start"),
    ]
