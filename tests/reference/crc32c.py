"""CRC-32C bit by bit, as RFC 3720 appendix B.4 describes it."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes, before: int = 0) -> int:
    """CRC-32C of what `before` covers, followed by `data`."""
    crc = before ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
