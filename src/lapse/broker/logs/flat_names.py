"""Topics whose names differ only in '.' and '_': Kafka's metrics take one for the other."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.image import Image


def flat(name: str) -> str:
    """What names that collide have in common."""
    return name.replace(".", "_")


class FlatNames:
    """Found at once: a request may name thousands of new topics, and there may be thousands."""

    def __init__(self) -> None:
        self._of: Image | None = None
        self._names: dict[str, str] = {}

    def require_none_like(self, name: str, image: Image) -> None:
        """Raise INVALID_TOPIC_EXCEPTION where the name collides with another of the image."""
        if image is not self._of:
            self._names = {flat(other): other for other in image.topics}
            self._of = image
        other = self._names.get(flat(name), name)
        if other != name:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with {other!r}: they differ only in '.' and '_'",
            )
