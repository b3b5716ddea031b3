"""Keeps the results of pure functions under keys made from content. Knows no quantization.

::

    memo.run(stage, arguments)
        key = stage's name, version and environment + digests of the arguments
        store:  key -> digest of the result -> blob

A result is known by its digest alone, so a chain of stages whose inputs did not change reads no blob at all.
"""

from quantry.memo._blob import Blob
from quantry.memo._digest import Digest, fingerprint_file
from quantry.memo._directory_store import DirectoryStore
from quantry.memo._fingerprint import fingerprint, fingerprint_array
from quantry.memo._function_digest import function_digest
from quantry.memo._handle import Handle
from quantry.memo._memo import Memo
from quantry.memo._memory_store import MemoryStore
from quantry.memo._part import part
from quantry.memo._stage import Stage, stage
from quantry.memo._storable import Storable
from quantry.memo._store import Store
from quantry.memo._trace import Trace, TraceEntry

__all__ = [
    "Blob",
    "Digest",
    "DirectoryStore",
    "Handle",
    "Memo",
    "MemoryStore",
    "Stage",
    "Storable",
    "Store",
    "Trace",
    "TraceEntry",
    "fingerprint",
    "fingerprint_array",
    "fingerprint_file",
    "function_digest",
    "part",
    "stage",
]
