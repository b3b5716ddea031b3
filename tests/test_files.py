"""The one atomic write: complete or not at all, never through a link, never waiting for a pipe."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quantry.errors import FileKindError
from quantry.files import (
    is_leftover,
    new_file,
    open_regular,
    read_regular,
    require_folder,
    temporary_name,
    write_file,
)
from quantry.recipe import Recipe, save_recipe

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes and needs rights for links")


def planted(kind: str, folder: Path) -> Path:
    """Return a path where something stands that is no file of this folder."""
    path, outside = folder / "planted", folder.parent / "outside"
    outside.write_bytes(b"precious")
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "dangling link":
        path.symlink_to(folder.parent / "missing")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    return path


def in_time(action: Callable[[], object]) -> BaseException | None:
    """Return what an action raises; fail if it waits."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    return raised[0] if raised else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


ACTIONS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: write_file(path, b"new"),
    "append": lambda path: open_regular(path, "ab"),
    "read": read_regular,
    "recipe": lambda path: save_recipe(Recipe(), path),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "device"])
def test_what_is_no_file_is_refused_with_its_name(kind: str, action: str, folder: Path) -> None:
    path = planted(kind, folder)
    error = in_time(lambda: ACTIONS[action](path))
    assert isinstance(error, FileKindError)
    assert f"at {path}" in str(error)
    assert kind.rsplit(maxsplit=1)[-1] in str(error)
    assert (folder.parent / "outside").read_bytes() == b"precious"
    assert not (folder.parent / "missing").exists()
    assert [file.name for file in folder.iterdir()] == ([] if kind == "device" else ["planted"])


def test_appending_to_a_file_with_two_names_is_refused(folder: Path) -> None:
    (folder.parent / "outside").write_bytes(b"precious")
    (folder / "log").hardlink_to(folder.parent / "outside")
    with pytest.raises(FileKindError, match="hard link"):
        open_regular(folder / "log", "ab")
    write_file(folder / "log", b"new")
    assert (folder.parent / "outside").read_bytes() == b"precious"


def test_a_link_planted_after_the_check_is_replaced_and_not_followed(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_bytes(b"precious")
    with new_file(folder / "model") as file:
        file.write(b"new")
        (folder / "model").symlink_to(outside)
    assert outside.read_bytes() == b"precious"
    assert (folder / "model").read_bytes() == b"new"
    assert not (folder / "model").is_symlink()


def test_a_folder_that_is_exchanged_while_writing_does_not_receive_the_file(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    with new_file(folder / "model") as file:
        file.write(b"new")
        folder.rename(folder.parent / "moved")
        folder.symlink_to(folder.parent / "elsewhere")
    assert list((folder.parent / "elsewhere").iterdir()) == []
    assert (folder.parent / "moved" / "model").read_bytes() == b"new"


def test_an_exception_leaves_the_old_content_and_no_other_file(folder: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError

    write_file(folder / "model", "old")
    with pytest.raises(RuntimeError):
        write_file(folder / "model", pieces())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"model": b"old"}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_the_umask_or_of_the_replaced_file(umask: int, folder: Path) -> None:
    old = os.umask(umask)
    try:
        write_file(folder / "new", "")
        (folder / "kept").touch()
        (folder / "kept").chmod(0o640)
        write_file(folder / "kept", "")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((folder / "kept").stat().st_mode) == 0o640


def test_what_a_killed_process_was_writing_is_deleted_by_the_next_write(folder: Path) -> None:
    script = """
import sys, time
from quantry.files import new_file
with new_file(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(folder / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        write_file(folder / "other", "while it lives")
        (running,) = (file for file in folder.iterdir() if file.name != "other")
        process.send_signal(signal.SIGKILL)
    assert running.exists()
    write_file(folder / "another", "")
    assert sorted(file.name for file in folder.iterdir()) == ["another", "other"]


def test_files_that_only_look_temporary_stay(folder: Path) -> None:
    for name in (".model.part", ".model.00000000-1-0.part", "model.part"):
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    write_file(folder / "model", "")
    assert len(list(folder.iterdir())) == 4


def test_leftovers_of_other_machines_count_after_an_hour() -> None:
    foreign = ".model.00000000-1-0123456789abcdef.part"
    assert is_leftover(foreign, time.time() - 7200)
    assert not is_leftover(foreign, time.time())
    assert not is_leftover(temporary_name("model" * 100), time.time())
    assert len(temporary_name("model" * 100)) < 255


def test_a_folder_may_not_be_a_link(folder: Path) -> None:
    require_folder(folder)
    require_folder(folder / "missing")
    (folder / "link").symlink_to(folder.parent)
    with pytest.raises(FileKindError, match="a link"):
        require_folder(folder / "link")
