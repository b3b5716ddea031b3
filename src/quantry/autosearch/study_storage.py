"""Where the study of a search is kept: a file in its folder, or a database."""

from typing import TYPE_CHECKING, Any

from quantry.autosearch.journal import JournalFile
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.quiet_optuna import quiet_optuna
from quantry.errors import MissingExtraError, StoreError

if TYPE_CHECKING:
    import optuna


def open_storage(directory: OutputDirectory, url: str | None) -> "optuna.storages.BaseStorage":
    """Return Optuna's storage of the studies.

    Args:
        directory: The folder of the search.
        url: A database as SQLAlchemy names it, such as ``postgresql+psycopg://user@host/name``; None is the journal in
            the folder.

    Raises:
        MissingExtraError: The database's driver is not installed.
        StoreError: The database cannot be reached, or the journal cannot be written.
    """
    import optuna

    with quiet_optuna():
        if url is None:
            # The base class of backends is only an interface, and inheriting would load Optuna with this module.
            backend: Any = JournalFile(directory.journal)
            return optuna.storages.JournalStorage(backend)
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except ImportError as error:
            raise MissingExtraError(
                f"the database of a search needs a driver that is installed, got {error}; install quantry[postgres] "
                "and write postgresql+psycopg://..., or use sqlite:///study.db"
            ) from error
        except Exception as error:
            raise StoreError(
                f"the database of a search must be reachable under its URL, got {_told(error)}; in {hidden(url)}"
            ) from error


def close_storage(storage: "optuna.storages.BaseStorage") -> None:
    """Close the connections to a database; a journal has none."""
    import optuna

    if isinstance(storage, optuna.storages.RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def hidden(url: str) -> str:
    """Return a URL without its password."""
    scheme, separator, rest = url.partition("://")
    account, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{account.partition(':')[0]}{at}{place}"


def _told(error: BaseException) -> str:
    """Return the last sentence of a chain of errors: what the driver said."""
    cause = error.__cause__ or error.__context__
    return str(error).splitlines()[0] if cause is None else _told(cause)
