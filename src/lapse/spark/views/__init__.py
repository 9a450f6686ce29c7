"""Lapse's knowledge of logs as tables: segments, plan, ledger and keys, as Arrow record batches.

`options` and `spec` define the options and the units of work, `schema` the meaning of the columns;
`questions` has three queries over them. Nothing here starts Spark: a unit is JSON, so that a
Spark partition can be one. What is exported is all that a data source needs.
"""

from lapse.spark.views.options import parse_view_options
from lapse.spark.views.questions import QUESTIONS, TABLES
from lapse.spark.views.read import read_unit, view_units
from lapse.spark.views.schema import SCHEMAS
from lapse.spark.views.spec import ViewOptions, ViewUnit, decode_unit, encode_unit

__all__ = (
    "QUESTIONS", "SCHEMAS", "TABLES", "ViewOptions", "ViewUnit", "decode_unit", "encode_unit",
    "parse_view_options", "read_unit", "view_units",
)  # fmt: skip
