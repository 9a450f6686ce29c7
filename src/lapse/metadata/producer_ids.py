"""Blocks of producer ids in the tree that brokers share: no id is given twice.

    /producer-ids           where the next block begins
    /producer-ids/BROKER    what that broker committed its last block with; no two are the same

Every broker that takes the block after 0 writes 1000 into the same version of the first node. Where
a connection breaks under a commit, its tree looks at the nodes to learn whether it was done, and
what another broker has written would look like its own: both would give out the block. So each
commit writes something that no other one does. Brokers from before that read the first node alone.
"""

from __future__ import annotations

import uuid

from lapse.base.errors import CorruptData
from lapse.metadata.tree import Change, Conflict, Create, Tree

NEXT = "/producer-ids"


def allocate(tree: Tree, broker: int, count: int) -> range:
    """A block that nobody else gets. Raises Unreachable: then nobody gets it."""
    own_path = f"{NEXT}/{broker}"
    while True:
        node, own = tree.get([NEXT, own_path])
        if node is None:
            raise CorruptData(NEXT, 0, "a node that must be there is missing")
        start, mark = int(node.data), uuid.uuid4().hex.encode()
        marked = (
            Create(own_path, mark) if own is None else Change(own_path, mark, own.version)
        )  # fmt: skip
        try:
            tree.commit([Change(NEXT, str(start + count).encode(), node.version), marked])
        except Conflict:
            continue  # another one took the block
        return range(start, start + count)
