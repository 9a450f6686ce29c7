"""Compile every kernel into the cache once, archive Spark's classes: `make setup`'s last step."""

from lapse.base.fs import RealFs
from lapse.broker.warm_up import warm_up as warm_up_broker
from lapse.kernels.jit import CACHE_DIR
from lapse.lifecycle.erase.warm_up import warm_up as warm_up_erase
from lapse.lifecycle.warm_up import warm_up as warm_up_rounds
from lapse.records.batch_writer import warm_up as warm_up_batch_writer
from lapse.records.columns import warm_up as warm_up_columns
from lapse.records.from_arrow import warm_up as warm_up_from_arrow
from lapse.spark.session.class_archive import archive_classes
from lapse.spark.views.keys import warm_up as warm_up_keys

if __name__ == "__main__":
    warm_up_broker()
    warm_up_rounds(RealFs())
    warm_up_columns()
    warm_up_batch_writer()
    warm_up_from_arrow()
    warm_up_keys()
    warm_up_erase()
    print(f"kernels ready in {CACHE_DIR}")
    print(archive_classes())
