"""Compile what each start would wait for: kernels, bytecode, Spark's classes; ends `make setup`."""

import compileall
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lapse
from lapse.base.fs import RealFs
from lapse.broker.warm_up import warm_up as warm_up_broker
from lapse.cli.main import COMMANDS
from lapse.kernels.jit import CACHE_DIR
from lapse.lifecycle.erase.warm_up import warm_up as warm_up_erase
from lapse.lifecycle.warm_up import warm_up as warm_up_rounds
from lapse.records.batch_writer import warm_up as warm_up_batch_writer
from lapse.records.columns import warm_up as warm_up_columns
from lapse.records.from_arrow import warm_up as warm_up_from_arrow
from lapse.records.row_digest import warm_up as warm_up_row_digest
from lapse.spark.session.class_archive import archive_classes
from lapse.spark.views.keys import warm_up as warm_up_keys


def compile_bytecode() -> None:
    """Ours, and of packages what our commands import: not all that there is."""
    compileall.compile_dir(Path(lapse.__file__).parent, quiet=1)
    for command in COMMANDS.values():
        importlib.import_module(command.module)
    for name in ("pyspark.sql", "pyspark.worker", "uvicorn.protocols.http.auto"):
        importlib.import_module(name)


if __name__ == "__main__":
    with ThreadPoolExecutor(1) as beside:  # it is Java's work, and as long as all the rest
        archived = beside.submit(archive_classes)
        warm_up_broker()
        warm_up_rounds(RealFs())
        warm_up_columns()
        warm_up_batch_writer()
        warm_up_from_arrow()
        warm_up_row_digest()
        warm_up_keys()
        warm_up_erase()
        compile_bytecode()
    print(f"kernels ready in {CACHE_DIR}")
    print(archived.result())
