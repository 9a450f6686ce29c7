"""How tests start Java."""

from __future__ import annotations

# A JVM that lives for a minute does a fifth less so.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
