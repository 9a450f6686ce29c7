"""The directories of `log.dirs`, in order; what a broker has one of lies in the first."""

from __future__ import annotations

from pathlib import Path

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError


def log_dirs(config: BrokerConfig) -> tuple[Path, ...]:
    """All of them; raises ConfigError if there is none."""
    names = [name.strip() for name in config.log_dirs.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"log.dirs={config.log_dirs}: allowed is at least one directory")
    if len(set(names)) < len(names):
        raise ConfigError(f"log.dirs={config.log_dirs}: allowed is each directory once")
    return tuple(Path(name) for name in names)
