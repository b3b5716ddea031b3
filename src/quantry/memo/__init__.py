"""Stores the results of pure functions under keys made from content. Knows nothing about quantization.

::

    memo.run(stage, arguments)
        key = stage's name, version and environment + digests of the arguments
        store:  key -> digest of the result, notes -> blob

A result is identified by its digest, so a chain of stages whose inputs did not change reads no blob at all.
"""

from quantry.memo._blob import Blob, Storable
from quantry.memo._directory_store import DirectoryStore
from quantry.memo._fingerprint import Digest, fingerprint, fingerprint_array, fingerprint_file
from quantry.memo._function_digest import function_digest
from quantry.memo._maintenance import StoreUsage, clear_store, prune_store, store_usage, verify_store
from quantry.memo._memo import Handle, Memo
from quantry.memo._stage import Environment, Stage, checkpoint, stage
from quantry.memo._stores import MemoryStore, Store
from quantry.memo._trace import Trace, TraceEntry

__all__ = [
    "Blob",
    "Digest",
    "DirectoryStore",
    "Environment",
    "Handle",
    "Memo",
    "MemoryStore",
    "Stage",
    "Storable",
    "Store",
    "StoreUsage",
    "Trace",
    "TraceEntry",
    "checkpoint",
    "clear_store",
    "fingerprint",
    "fingerprint_array",
    "fingerprint_file",
    "function_digest",
    "prune_store",
    "stage",
    "store_usage",
    "verify_store",
]
