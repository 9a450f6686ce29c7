"""The commands of `lapse`: one module per command."""
