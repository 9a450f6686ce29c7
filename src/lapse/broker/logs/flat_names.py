"""Topics whose names differ only in '.' and '_': Kafka's metrics take one for the other."""

from __future__ import annotations

from lapse.metadata.image import Image


def flat(name: str) -> str:
    """What names that collide have in common."""
    return name.replace(".", "_")


class FlatNames:
    """Found at once: a request may name thousands of new topics, and there may be thousands."""

    def __init__(self) -> None:
        self._of: Image | None = None
        self._names: dict[str, str] = {}

    def like(self, name: str, image: Image) -> str | None:
        """A topic of the image that the name collides with, if there is one."""
        if image is not self._of:
            self._names = {flat(other): other for other in image.topics}
            self._of = image
        return self._names.get(flat(name))
