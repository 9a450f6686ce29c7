"""The tables of a lone broker's store, from the first version on."""

from __future__ import annotations

LIVE, DELETING = 0, 1  # a topic

_TOPICS = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    topic_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    overrides TEXT NOT NULL,
    state INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX live_names ON topics (name) WHERE state = {LIVE};
"""
_BROKER_SETTINGS = """
CREATE TABLE broker_settings (
    broker TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (broker, name)
) WITHOUT ROWID;
"""
_SECURITY = """
CREATE TABLE acls (
    resource_type INTEGER NOT NULL,
    pattern_type INTEGER NOT NULL,
    name TEXT NOT NULL,
    principal TEXT NOT NULL,
    host TEXT NOT NULL,
    operation INTEGER NOT NULL,
    permission INTEGER NOT NULL,
    PRIMARY KEY (resource_type, pattern_type, name, principal, host, operation, permission)
) WITHOUT ROWID;
CREATE TABLE scram_credentials (
    user TEXT NOT NULL,
    mechanism INTEGER NOT NULL,
    salt BLOB NOT NULL,
    stored_key BLOB NOT NULL,
    server_key BLOB NOT NULL,
    iterations INTEGER NOT NULL,
    PRIMARY KEY (user, mechanism)
) WITHOUT ROWID;
"""
_CLIENT_QUOTAS = """
CREATE TABLE client_quotas (
    entity TEXT NOT NULL,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (entity, name)
) WITHOUT ROWID;
"""
_SEALS = "CREATE TABLE seals (name TEXT PRIMARY KEY, seal TEXT NOT NULL) WITHOUT ROWID;"
# What brings a store from each version to the next; a new one, whose version is 0, gets them all.
MIGRATIONS = (_TOPICS, _BROKER_SETTINGS, _SECURITY, _CLIENT_QUOTAS, _SEALS)
SCHEMA_VERSION = len(MIGRATIONS)
